// One team of threads for all sessions of a process. Threads of ONNX Runtime's pool sleep after each op, and waking one takes as long as
// a tenth of a product of one column. These wait for the next op awake, but not for long, and only while nothing else wants the cores:
// as long as the system does not interrupt the caller. Beside busy neighbours, the pool does the work.

#include "onnx_team.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#if defined(__linux__)
#include <sys/resource.h>
#endif
#else
static int getpid() { return 0; }
#endif

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto AWAKE = 200us; // after the last op
constexpr auto LATE = 500us;  // that others end their parts after the caller: one of them was interrupted
constexpr int OFTEN = 32, CALM = 128; // ops after which a caller looks for interruptions, and without any before it calls the team

static void pause() {
#if defined(__x86_64__)
    _mm_pause();
#endif
}

// How often the system interrupted this thread for another one.
static long interruptions() {
#if defined(__linux__)
    rusage used = {};
    getrusage(RUSAGE_THREAD, &used);
    return used.ru_nivcsw;
#else
    return 0;
#endif
}

// The ops of a caller since it was interrupted.
class Calm {
    long seen = -1;
    int ops = 0;

  public:
    bool lasts() {
#if defined(BACKBAY_ALWAYS_CALM) // for tests
        return true;
#endif
        if (ops++ % OFTEN == 0)
            if (const long now = interruptions(); now != seen)
                seen = now, ops = 1;
        if (ops > CALM + OFTEN)
            ops -= OFTEN;
        return ops > CALM;
    }

    void end() { ops = 0; }
};

class Team {
    // Of the current op: its number, whether threads may still join it, and how many have.
    static constexpr uint64_t INSIDE = 0xffff, OPEN = INSIDE + 1, NUMBER = 2 * OPEN;
    alignas(64) std::atomic<uint64_t> state{0};
    alignas(64) std::atomic<size_t> next{0};
    alignas(64) std::atomic<bool> taken{false};
    std::atomic<long> places{0}, sleepers{0};
    std::mutex mutex;
    std::condition_variable begun;
    size_t count = 0;
    void (*function)(void *, size_t) = nullptr;
    void *data = nullptr;
    long members = 0;

    bool is_new(uint64_t s, uint64_t last) const { return s & OPEN && s / NUMBER != last; }

    void work() {
        for (size_t n; (n = next.fetch_add(1, std::memory_order_relaxed)) < count;)
            function(data, n);
    }

    uint64_t wait(uint64_t last) {
        const auto end = Clock::now() + AWAKE;
        for (int n = 1;; n++) {
            const uint64_t s = state.load(std::memory_order_acquire);
            if (is_new(s, last))
                return s;
            pause();
            if (n % 64 == 0 && Clock::now() > end)
                break;
        }
        std::unique_lock<std::mutex> lock(mutex);
        sleepers++;
        begun.wait(lock, [&] { return is_new(state, last); });
        sleepers--;
        return state;
    }

    void serve() {
        for (uint64_t last = 0;;) {
            uint64_t s = wait(last);
            while (is_new(s, last) && (long)(s & INSIDE) < places)
                if (state.compare_exchange_weak(s, s + 1, std::memory_order_acquire)) {
                    work();
                    state.fetch_sub(1, std::memory_order_release);
                    break;
                }
            last = s / NUMBER;
        }
    }

    void grow(long wanted) {
        try {
            for (; members < wanted; members++)
                std::thread([this] { serve(); }).detach();
        } catch (const std::system_error &) { // no more threads
        }
    }

    // Whether all ended their parts in time.
    bool work_together(long threads) {
        grow(threads - 1);
        places = threads - 1;
        state = (state / NUMBER + 1) * NUMBER | OPEN;
        if (sleepers) {
            std::lock_guard<std::mutex> lock(mutex);
            begun.notify_all();
        }
        work();
        state.fetch_and(~OPEN);
        const auto end = Clock::now();
        for (int n = 1; state.load(std::memory_order_acquire) & INSIDE; n++) {
            pause();
            if (n % 1024 == 0)
                std::this_thread::yield();
        }
        return Clock::now() - end < LATE;
    }

  public:
    const int process = getpid();

    bool share(long threads, size_t all, void (*call)(void *, size_t), void *with) {
        static thread_local Calm calm;
        if (!calm.lasts() || taken.exchange(true, std::memory_order_acquire))
            return false;
        count = all, function = call, data = with, next = 0;
        if (!work_together(threads))
            calm.end();
        taken.store(false, std::memory_order_release);
        return true;
    }
};

} // namespace

// A forked child has none of the threads: it makes a team of its own. None ends before its process.
bool ort::share(long threads, size_t count, void (*function)(void *, size_t), void *data) {
    static std::atomic<Team *> team{nullptr};
    Team *found = team;
    if (!found || found->process != getpid()) {
        Team *made = new Team;
        if (team.compare_exchange_strong(found, made))
            found = made;
        else
            delete made;
    }
    return found->share(threads, count, function, data);
}
