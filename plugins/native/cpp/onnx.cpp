// Custom ops for ONNX Runtime: products of quantized weights as they lie in model files, their rows, attention, recurrences.
//
// Columns     columns in codes, once for all weights that they meet
// Products    the products of weights and columns in codes
// Rows        rows of weights by number, decoded
// Cells       the table of the cells that queries see, from a mask
// Attention   attention over a history
// Silu        x * sigmoid(x), times another factor if there is one
// DeltaRule, SelectiveScan   the recurrences of the ops of these names

#include "onnx_runtime.h"
#include "products.h"
#include "recurrence_call.h"

#include <atomic>

ort::Table ort::table;

extern "C" void backbay_columns(ggml_tensor *result, int thread, int threads, void *format);
extern "C" void backbay_gates(const float *x, const float *up, float *y, long first, long end);
extern "C" void backbay_products(ggml_tensor *result, int thread, int threads, void *format);

using namespace ort;

namespace {

constexpr long CODES = sizeof(Entry) / sizeof(float); // floats of 32 numbers of a column in codes
long quotient(long a, long b) { return (a + b - 1) / b; }

constexpr long BYTES = 200 << 10; // of weights that a part of a product reads, about
constexpr long ROWS = 48; // least, of such a part
constexpr int EXPECTED = 16; // threads, of a product's first run: the first one to come must not take half of the work
constexpr long NUMBERS = 1 << 15; // of a gate, in a part
constexpr long DECODED = 8; // rows, in a part
constexpr long BLOCKS = 1024; // of columns, in a part

struct ColumnsKernel {
    static constexpr const char *NAME = "Columns";
    static constexpr Element TYPES[] = {FLOAT}, RESULT = FLOAT;
    static constexpr size_t NEEDED = 1;
    const int64_t format, inner; // of columns in any shape, their numbers; 0: the last axis

    explicit ColumnsKernel(const Info *info) : format(attribute_of<int64_t>(info, "format")), inner(attribute_of<int64_t>(info, "inner")) {}

    void run(const Run &run) const {
        const Array x = inner ? run.input(0).shaped({inner}) : run.input(0);
        std::vector<int64_t> extents = x.extents;
        extents.back() = x.last() / BLOCK * CODES;
        const Array codes = run.output(extents);
        ggml_tensor from = x.matrix(), to = codes.matrix();
        to.src[0] = &from;
        if (x.rows())
            run.parts(quotient(x.rows() * x.last() / BLOCK, BLOCKS),
                      [&](int part, int parts) { backbay_columns(&to, part, parts, (void *)format); });
    }
};

struct ProductsKernel {
    static constexpr const char *NAME = "Products";
    static constexpr Element TYPES[] = {UINT8, FLOAT, UINT8, INT64}, RESULT = FLOAT; // weights, columns in codes, the next product's weights, a shape
    static constexpr size_t NEEDED = 2;
    const int64_t format, first, rows; // of the matrix of weights
    mutable std::atomic<int> threads{0}; // that came to earlier runs, most

    explicit ProductsKernel(const Info *info)
        : format(attribute_of<int64_t>(info, "format")), first(attribute_of<int64_t>(info, "first")),
          rows(attribute_of<int64_t>(info, "rows")) {}

    void run(const Run &run) const {
        const Array weights = run.input(0), codes = run.input(1);
        std::vector<int64_t> extents = codes.extents;
        extents.back() = rows;
        if (run.has(3))
            extents = run.input(3).extents_of(codes.rows() * rows);
        const Array y = run.output(extents);
        ggml_tensor w = weights.matrix(), entries = codes.matrix(), to = Array{FLOAT, y.data, {codes.rows(), rows}}.tensor();
        w.data = (char *)w.data + first * w.nb[1];
        w.ne[0] = codes.last() / CODES * BLOCK, w.ne[1] = rows;
        to.src[0] = &w, to.src[1] = &entries;
        ggml_tensor next;
        if (run.has(2))
            next = run.input(2).matrix(), to.src[2] = &next;
        const int known = threads.load(std::memory_order_relaxed);
        const int sharing = known ? known : EXPECTED; // the same for all parts: shares follow from it
        std::atomic<int> came{0};
        std::atomic<bool> taken{false}; // all work
        if (codes.rows())
            run.parts(parts(weights.last(), codes.rows()), [&](int, int) {
                if (taken.load(std::memory_order_relaxed))
                    return;
                came++;
                backbay_products(&to, Shares::ANY, sharing, (void *)format);
                taken.store(true, std::memory_order_relaxed);
            });
        if (came > known)
            threads = came.load();
    }

    // Few enough that each has work. Threads share the work of all parts: one that returns leaves none.
    long parts(long row, long columns) const {
        const long turns = quotient(rows, ROWS), bytes = rows * row * quotient(columns, 8);
        const long wanted = quotient(bytes, BYTES);
        return wanted < turns ? wanted : turns;
    }
};

static void decode_q4_0(const char *block, float *x) {
    const float d = of_half(half_at(block));
    for (int i = 0; i < 16; i++) {
        const int code = (uint8_t)block[2 + i];
        x[i] = (float)((code & 15) - 8) * d;
        x[16 + i] = (float)((code >> 4) - 8) * d;
    }
}

static void decode_q8_0(const char *block, float *x) {
    const float d = of_half(half_at(block));
    for (int i = 0; i < 32; i++)
        x[i] = (float)(int8_t)block[2 + i] * d;
}

static void decode_q4_k(const char *block, float *x) {
    const float d = of_half(half_at(block)), dmin = of_half(half_at(block + 2));
    const uint8_t *six = (const uint8_t *)block + 4, *codes = (const uint8_t *)block + 16;
    for (int n = 0; n < 8; n++) { // blocks of 32
        const int scale = n < 4 ? six[n] & 63 : (six[n + 4] & 15) | (six[n - 4] >> 6 << 4);
        const int minimum = n < 4 ? six[n + 4] & 63 : (six[n + 4] >> 4) | (six[n] >> 6 << 4);
        const float factor = d * (float)scale, less = dmin * (float)minimum;
        for (int i = 0; i < 32; i++)
            x[32 * n + i] = (float)(codes[n / 2 * 32 + i] >> n % 2 * 4 & 15) * factor - less;
    }
}

static void decode_q6_k(const char *block, float *x) {
    const float d = of_half(half_at(block + 208));
    const uint8_t *low = (const uint8_t *)block, *high = low + 128;
    for (int i = 0; i < 256; i++) {
        const int half = i / 128, quarter = i % 128 / 32, place = i % 32;
        const int four = low[64 * half + quarter % 2 * 32 + place] >> quarter / 2 * 4 & 15;
        const int two = high[32 * half + place] >> 2 * quarter & 3;
        x[i] = (float)((four | two << 4) - 32) * (d * (float)(int8_t)block[192 + i / 16]);
    }
}

// The numbers of a row of so many weights.
static void decode_row(Format format, const char *row, long weights, float *x) {
    const Layout &layout = LAYOUTS[format];
    for (long i = 0; i < weights; i += layout.blocks * BLOCK, row += layout.size, x += layout.blocks * BLOCK)
        switch (format) {
        case Q4_0: decode_q4_0(row, x); break;
        case Q8_0: decode_q8_0(row, x); break;
        case Q4_K: decode_q4_k(row, x); break;
        default: decode_q6_k(row, x);
        }
}

struct RowsKernel {
    static constexpr const char *NAME = "Rows";
    static constexpr Element TYPES[] = {UINT8, INT64}, RESULT = FLOAT; // weights, numbers of rows
    static constexpr size_t NEEDED = 2;
    const int64_t format;

    explicit RowsKernel(const Info *info) : format(attribute_of<int64_t>(info, "format")) {}

    void run(const Run &run) const {
        const Array weights = run.input(0), ids = run.input(1);
        const Layout &layout = LAYOUTS[format];
        const long row = weights.last(), width = row / layout.size * layout.blocks * BLOCK;
        std::vector<int64_t> extents = ids.extents;
        extents.push_back(width);
        const Array x = run.output(extents);
        const long count = x.rows();
        const int64_t *numbers = (const int64_t *)ids.data;
        for (long n = 0; n < count; n++)
            if (numbers[n] < 0 || numbers[n] >= weights.rows())
                throw Failed{failure("a row's number is out of range")};
        run.parts(quotient(count, DECODED), [&](int part, int parts) {
            for (long n = count * part / parts; n < count * (part + 1) / parts; n++)
                decode_row((Format)format, (const char *)weights.data + numbers[n] * row, width, (float *)x.data + n * width);
        });
    }
};

struct SiluKernel {
    static constexpr const char *NAME = "Silu";
    static constexpr Element TYPES[] = {FLOAT, FLOAT}, RESULT = FLOAT; // the number, the other factor
    static constexpr size_t NEEDED = 1;

    explicit SiluKernel(const Info *) {}

    void run(const Run &run) const {
        const Array x = run.input(0), y = run.output(x.extents);
        const float *up = run.has(1) ? (const float *)run.input(1).data : nullptr;
        const long count = x.count();
        run.parts(quotient(count, NUMBERS), [&](int part, int parts) {
            backbay_gates((const float *)x.data, up, (float *)y.data, count * part / parts, count * (part + 1) / parts);
        });
    }
};

constexpr long WORK = 1 << 16; // numbers of states times tokens, in a part

const float *floats(const Array &x) { return (const float *)x.data; }

// `states` is (sequences, heads, rows, width); `added` is (sequences, tokens, heads, rows), as the outputs.
Recurrence between(const Run &run, const Array &states, const Array &added) {
    const long ends = states.rows() * states.last(), outputs = added.rows() * added.last();
    float *const y = (float *)run.output({outputs + ends}).data;
    const std::vector<int64_t> &n = added.extents;
    return {y, y + outputs, floats(states), floats(added), states.last(), (long)n[3], (long)n[2], (long)n[1], (long)n[0]};
}

template <class Call> void compute_all(const Run &run, const Call &call) {
    const long heads = call.heads * call.sequences, work = heads * call.rows * call.width * call.tokens / WORK + 1;
    run.parts(work < heads ? work : heads, [&](int part, int parts) { compute(call, part, parts); });
}

struct DeltaRuleKernel {
    static constexpr const char *NAME = "DeltaRule";
    static constexpr Element TYPES[] = {FLOAT, FLOAT, FLOAT, FLOAT, FLOAT, FLOAT, FLOAT}, RESULT = FLOAT; // as the op's operands
    static constexpr size_t NEEDED = 6;

    explicit DeltaRuleKernel(const Info *) {}

    void run(const Run &run) const {
        const Array decay = run.input(4), share = run.input(5);
        compute_all(run, DeltaRule{between(run, run.input(0), run.input(3)), floats(run.input(1)), floats(run.input(2)), floats(decay),
                                   floats(share), run.has(6) ? floats(run.input(6)) : nullptr, decay.last(), share.last()});
    }
};

struct SelectiveScanKernel {
    static constexpr const char *NAME = "SelectiveScan";
    static constexpr Element TYPES[] = {FLOAT, FLOAT, FLOAT, FLOAT, FLOAT, FLOAT}, RESULT = FLOAT; // states, x, dt, A, B, C
    static constexpr size_t NEEDED = 6;

    explicit SelectiveScanKernel(const Info *) {}

    void run(const Run &run) const {
        const Array A = run.input(3), B = run.input(4);
        compute_all(run, SelectiveScan{between(run, run.input(0), run.input(1)), floats(run.input(2)), floats(A), floats(B),
                                       floats(run.input(5)), nullptr, A.last(), (long)B.extents[2]});
    }
};

} // namespace

// Called by ONNX Runtime for the options of a session. The domain of the ops lives as long as the process.
extern "C" ort::Status *RegisterCustomOps(ort::Options *options, const ort::Base *base) {
    static ort::Domain *domain;
    if (!domain) {
        ort::table = base->table(ort::VERSION);
        if (!ort::table)
            return base->table(1) ? ((ort::Status * (*)(int, const char *)) base->table(1)[0])(ort::FAIL, "too old") : nullptr;
        ort::Status *status = ort::make_domain("backbay", &domain);
        for (const ort::Op *op : {op<ColumnsKernel>(), op<ProductsKernel>(), op<RowsKernel>(), op<SiluKernel>(), op<DeltaRuleKernel>(),
                                  op<SelectiveScanKernel>(), cells_op(), attention_op()})
            if (!status)
                status = ort::add_op(domain, op);
        if (status)
            return status;
    }
    return ort::add_domain(options, domain);
}
