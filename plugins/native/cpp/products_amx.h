// Products of unpacked weights by AMX, for many columns: a block of 16 rows times up to 16 columns is one instruction. It is included
// in the namespace of the code for AVX-512 with VNNI, whose results it gives bit by bit: sums of codes are exact, and what
// follows is the same.

namespace tiles {

// What LDTILECFG reads.
struct Config {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {}; // of a row
    uint8_t rows[16] = {};
};
static_assert(sizeof(Config) == 64, "");

#ifndef BACKBAY_EMULATED_TILES

constexpr const char *INSTRUCTIONS = "AMX";
INLINE void configure(const Config &config) { asm volatile("ldtilecfg %0" ::"m"(config)); }
INLINE void release() { asm volatile("tilerelease"); }
#define LOAD(tile, base, stride) asm volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(base), "r"((intptr_t)(stride)) : "memory")
#define MULTIPLY(sum, columns, weights) \
    asm volatile("tilezero %%tmm" #sum "\n\ttdpbsud %%tmm" #weights ", %%tmm" #columns ", %%tmm" #sum ::)
#define STORE(tile, base, stride) asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(base), "r"((intptr_t)(stride)) : "memory")

#else // for tests on processors without AMX

constexpr const char *INSTRUCTIONS = "emulated AMX"; // whose time tells nothing
static thread_local Config configured;
static thread_local uint8_t registers[8][16][64];

static void configure(const Config &config) { configured = config; }
static void release() { configured = {}; }

static void load_tile(int tile, const char *base, long stride) {
    memset(registers[tile], 0, sizeof registers[tile]);
    for (int row = 0; row < configured.rows[tile]; row++)
        memcpy(registers[tile][row], base + row * stride, configured.bytes[tile]);
}

static void multiply_tile(int sum, int columns, int weights) {
    memset(registers[sum], 0, sizeof registers[sum]);
    for (int row = 0; row < configured.rows[sum]; row++)
        for (int lane = 0; lane < configured.bytes[sum] / 4; lane++)
            for (int n = 0; n < configured.bytes[columns]; n++)
                ((int32_t *)registers[sum][row])[lane] +=
                    (int8_t)registers[columns][row][n] * registers[weights][n / 4][4 * lane + n % 4];
}

static void store_tile(int tile, char *base, long stride) {
    for (int row = 0; row < configured.rows[tile]; row++)
        memcpy(base + row * stride, registers[tile][row], configured.bytes[tile]);
}

#define LOAD(tile, base, stride) load_tile(tile, (const char *)(base), stride)
#define MULTIPLY(sum, columns, weights) multiply_tile(sum, columns, weights)
#define STORE(tile, base, stride) store_tile(tile, (char *)(base), stride)

#endif

constexpr long MOST = 16;  // columns of a tile
constexpr long FROM = 16;  // columns for which tiles are taken; fewer go through registers
constexpr long GROUPS = 8; // of four codes, in a block

// Tile 0 holds the codes of columns, tile 1 those of weights, tiles 2 and 3 their sums.
static Config config_for(int columns, int groups) {
    Config config;
    const int rows[4] = {columns, groups, columns, columns}, bytes[4] = {4 * groups, 64, 64, 64};
    for (int tile = 0; tile < 4; tile++)
        config.rows[tile] = (uint8_t)rows[tile], config.bytes[tile] = (uint16_t)bytes[tile];
    return config;
}

// The sums of a block, or of the half that begins at a group, in one of two places: one is computed while the other is read.
template <int PLACE>
INLINE void sum_codes(const Part &part, const Entry *e, int first, int32_t (*sums)[LANES]) {
    LOAD(0, e->codes + 4 * first, sizeof(Entry));
    LOAD(1, part.codes[first], sizeof part.codes[0]);
    if (PLACE == 0) {
        MULTIPLY(2, 0, 1);
        STORE(2, sums, sizeof sums[0]);
    } else {
        MULTIPLY(3, 0, 1);
        STORE(3, sums, sizeof sums[0]);
    }
}

template <int C>
INLINE void add_sums(const int32_t (*codes)[LANES], const Entry *e, int half, Vec scale, Vec *sums) {
    EACH(c, C) {
        const Ints sum = _mm512_add_epi32(load(codes[c]), numbers(e[c].bias[half]));
        sums[c] = plus_product(sums[c], times(converted(sum), scale), floats(e[c].scale));
    }
}

template <int C, Scales S>
TARGET static void add_wide_tile(const Part (*parts)[CHUNK], long blocks, const Entry *entries, float (*sums)[ROWS], Fetch &fetch) {
    constexpr int HALF = S == HALVES ? GROUPS / 2 : GROUPS, STEPS = S == HALVES ? 2 : 1;
    static const Config config = config_for(C, HALF);
    configure(config);
    alignas(64) int32_t codes[2][C][LANES];
    for (long p = 0; p < PANELS; p++) {
        Vec s[C];
        EACH(c, C)
            s[c] = load_floats(sums[c] + p * LANES);
        const long steps = blocks * STEPS;
        sum_codes<0>(parts[p][0], entries, 0, codes[0]);
        for (long n = 0; n < steps; n++) { // the sums of the next step are computed while those of this one are added
            const Part &part = parts[p][n / STEPS];
            const Entry *e = entries + n / STEPS * C;
            const long next = n + 1;
            if (next < steps) {
                const Part &other = parts[p][next / STEPS];
                const Entry *others = entries + next / STEPS * C;
                next % 2 ? sum_codes<1>(other, others, next % STEPS * HALF, codes[1])
                         : sum_codes<0>(other, others, next % STEPS * HALF, codes[0]);
            }
            if (p == 0 && n % STEPS == 0)
                fetch.step();
            const int half = n % STEPS;
            add_sums<C>(codes[n % 2], e, half, load_floats(half ? part.extra : part.scale), s);
            if (S == MINIMUM) {
                const Vec extra = load_floats(part.extra);
                EACH(c, C)
                    s[c] = plus_product(s[c], extra, floats(e[c].minus));
            }
        }
        EACH(c, C)
            store_floats(sums[c] + p * LANES, s[c]);
    }
}

#undef LOAD
#undef MULTIPLY
#undef STORE

template <Scales S, int C = MOST / 2>
INLINE void add_columns(long count, const Part (*parts)[CHUNK], long blocks, const Entry *entries, float (*sums)[ROWS], Fetch &fetch) {
    if constexpr (C < MOST)
        if (count > C)
            return tiles::add_columns<S, C + 1>(count, parts, blocks, entries, sums, fetch);
    add_wide_tile<C, S>(parts, blocks, entries, sums, fetch);
}

} // namespace tiles
