// Keys and values in blocks of codes, by AVX-512 with VNNI: products of whole numbers, four or two added at a time.
//
// A query is rounded to 16 bits for each block, the higher and the lower ones apart, and so are the weights of a tile. So
// results are nearly as exact as those of floats, which compute what is too large or too small for this, or NaN. A row of
// scores never depends on the numbers of the others; but all rows of a tile take floats if a key in it has no finite scale.

#define CODED __attribute__((target(VNNI_FEATURES AVX512_FEATURES)))

// A block of 32 numbers of a query: scale * (256 * high + low).
struct CodedQuery {
    int8_t high[32], low[32];
    float scale;
    int32_t bias[2]; // minus the centre of a key's codes, times the sum of `high` or `low`
};

// Whether numbers of this largest magnitude can be multiplied to the largest codes.
static inline bool is_usual(float most) { return most == 0 || (1e-30f <= most && most <= 1e30f); }

constexpr float LARGEST_CODE = 32639; // 256 * 127 + 127

// For keys whose codes have a centre. False if a block's numbers are too large, too small, or NaN.
CODED static bool encode_query(const float *x, long blocks, int centre, CodedQuery *to) {
    for (; blocks > 0; blocks--, x += 32, to++) {
        const __m512 halves[] = {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)};
        const float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(halves[0]), _mm512_abs_ps(halves[1])));
        if (!is_usual(most) || _mm512_cmp_ps_mask(halves[0], halves[1], _CMP_UNORD_Q))
            return false;
        const __m512 factor = _mm512_set1_ps(most == 0 ? 0 : LARGEST_CODE / most);
        __m512i high = _mm512_setzero_si512(), low = high;
        for (int i = 0; i < 2; i++) {
            const __m512i code = _mm512_cvtps_epi32(halves[i] * factor);
            const __m512i lower = _mm512_srai_epi32(_mm512_slli_epi32(code, 24), 24);
            const __m512i higher = _mm512_srai_epi32(_mm512_sub_epi32(code, lower), 8);
            _mm_storeu_si128((__m128i *)(to->high + 16 * i), _mm512_cvtepi32_epi8(higher));
            _mm_storeu_si128((__m128i *)(to->low + 16 * i), _mm512_cvtepi32_epi8(lower));
            high = _mm512_add_epi32(high, higher), low = _mm512_add_epi32(low, lower);
        }
        to->scale = most / LARGEST_CODE;
        to->bias[0] = -centre * _mm512_reduce_add_epi32(high);
        to->bias[1] = -centre * _mm512_reduce_add_epi32(low);
    }
    return true;
}

#include "quads.h"

struct CodesQ8_0 {
    static constexpr int SIZE = RowQ8_0::BLOCK;
    // Four codes of each of 16 cells at a time, none below 0.
    CODED INLINED void read(const char *const *blocks, __m512i *codes) {
        for (int half = 0; half < 2; half++) {
            quads(blocks, 2 + 16 * half, codes + 4 * half);
            for (int i = 0; i < 4; i++)
                codes[4 * half + i] ^= _mm512_set1_epi8((char)0x80);
        }
    }
    // The codes of a block.
    CODED INLINED __m512i block(const char *block) {
        return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(block + 2)));
    }
};

struct CodesQ4_0 {
    static constexpr int SIZE = RowQ4_0::BLOCK;
    CODED INLINED void read(const char *const *blocks, __m512i *codes) {
        const __m512i lower = _mm512_set1_epi8(15);
        quads(blocks, 2, codes);
        for (int i = 0; i < 4; i++) {
            codes[4 + i] = _mm512_srli_epi32(codes[i], 4) & lower;
            codes[i] &= lower;
        }
    }
    CODED INLINED __m512i block(const char *block) {
        const __m128i bytes = _mm_loadu_si128((const __m128i *)(block + 2));
        const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(bytes), _mm_srli_epi16(bytes, 4), 1);
        return _mm512_sub_epi16(_mm512_cvtepi8_epi16(both & _mm256_set1_epi8(15)), _mm512_set1_epi16(8));
    }
};

// Scores of R rows with the cells of a tile; rows of queries are apart by `blocks`. False if a scale is no finite number.
template <int R, class Codes>
CODED static bool coded_scores(const CodedQuery *query, long blocks, const Rows &keys, long cells, float *to) {
    constexpr int P = R <= 2 ? 2 : 1; // vectors of cells at a time
    for (long low = 0; low < cells; low += 16 * P) {
        const char *rows[P][16];
        __m512 sums[R][P] = {};
        for (int c = 0; c < 16 * P; c++)
            rows[c / 16][c % 16] = keys.at(low + c);
        for (long b = 0; b < blocks; b++) {
            __m512i coarse[R][P], fine[R][P];
            EACH(r, R) EACH(p, P) {
                coarse[r][p] = _mm512_set1_epi32(query[r * blocks + b].bias[0]);
                fine[r][p] = _mm512_set1_epi32(query[r * blocks + b].bias[1]);
            }
            EACH(p, P) {
                uint16_t halves[16];
                for (int c = 0; c < 16; c++)
                    memcpy(halves + c, rows[p][c], 2);
                const __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)halves));
                if (_mm512_fpclass_ps_mask(scale, 0x99)) // NaN or infinite
                    return false;
                __m512i codes[8];
                Codes::read(rows[p], codes);
                EACH(g, 8) EACH(r, R) {
                    const CodedQuery &q = query[r * blocks + b];
                    int32_t four[2];
                    memcpy(four, q.high + 4 * g, 4);
                    memcpy(four + 1, q.low + 4 * g, 4);
                    coarse[r][p] = _mm512_dpbusd_epi32(coarse[r][p], codes[g], _mm512_set1_epi32(four[0]));
                    fine[r][p] = _mm512_dpbusd_epi32(fine[r][p], codes[g], _mm512_set1_epi32(four[1]));
                }
                EACH(r, R) {
                    const __m512i whole = _mm512_add_epi32(_mm512_slli_epi32(coarse[r][p], 8), fine[r][p]);
                    sums[r][p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), scale * query[r * blocks + b].scale, sums[r][p]);
                }
                for (int c = 0; c < 16; c++)
                    rows[p][c] += Codes::SIZE;
            }
        }
        for (int c = 0; c < 16 * P; c++)
            keys.fetch(low + c);
        for (int r = 0; r < R; r++)
            for (int p = 0; p < P; p++)
                _mm512_storeu_ps(to + r * TILE + low + 16 * p, sums[r][p]);
    }
    return true;
}

// The weights of a row of scores in a tile, times the scales of a block: step * codes.
struct CodedWeights {
    int16_t codes[TILE];
    float step;
};

// R rows of weights, by block and row. The result has a bit for each row that is too large, too small, or NaN.
template <int R, class Codes>
CODED static unsigned encode_weights(const Rows &values, const float *weights, long blocks, CodedWeights *to) {
    constexpr int N = TILE / 16;
    // Parts of a step, which add up to 0. Small weights that are alike would else all be rounded up, or all down.
    const __m512 shifts = _mm512_set_ps(15, -1, 13, -3, 11, -5, 9, -7, 7, -9, 5, -11, 3, -13, 1, -15) * (1 / 32.0f);
    unsigned unusual = 0;
    for (long b = 0; b < blocks; b++) {
        uint16_t halves[TILE];
        values.read_scales(b * Codes::SIZE, halves);
        __m512 scales[N];
        for (int i = 0; i < N; i++)
            scales[i] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(halves + 16 * i)));
        for (int r = 0; r < R; r++, to++) {
            __m512 x[N], most = _mm512_setzero_ps();
            __mmask16 unordered = 0;
            for (int i = 0; i < N; i++) {
                x[i] = _mm512_loadu_ps(weights + r * TILE + 16 * i) * scales[i];
                most = _mm512_max_ps(_mm512_abs_ps(x[i]), most);
                unordered |= _mm512_cmp_ps_mask(x[i], x[i], _CMP_UNORD_Q);
            }
            const float highest = _mm512_reduce_max_ps(most);
            unusual |= (unordered || !is_usual(highest)) << r;
            const __m512 factor = _mm512_set1_ps(highest == 0 ? 0 : 32767 / highest);
            for (int i = 0; i < N; i++) {
                const __m512i codes = _mm512_cvtps_epi32(_mm512_fmadd_ps(x[i], factor, shifts));
                _mm256_storeu_si256((__m256i *)(to->codes + 16 * i), _mm512_cvtepi32_epi16(codes));
            }
            to->step = highest / 32767;
        }
    }
    return unusual;
}

// Add weighted values to the sums of R rows, but for those with a bit in `left`.
template <int R, class Codes>
CODED static void add_coded(float *sums, long stride, const Rows &values, long cells, const CodedWeights *weights, long blocks,
                            unsigned left) {
    constexpr int S = R <= 2 ? 2 : 1; // sums of a row, so that one need not wait for another
    const __m512i first = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (long c = 0; c < cells; c++)
        values.fetch(c);
    for (long b = 0; b < blocks; b++, weights += R) {
        __m512i s[R][S][2] = {};
        for (long c = 0; c < cells; c += 2 * S)
            EACH(i, S) {
                const long cell = c + 2 * i;
                const __m512i one = Codes::block(values.at(cell) + b * Codes::SIZE);
                const __m512i other = Codes::block(values.at(cell + 1) + b * Codes::SIZE);
                const __m512i low = _mm512_unpacklo_epi16(one, other), high = _mm512_unpackhi_epi16(one, other);
                EACH(r, R) {
                    int32_t two;
                    memcpy(&two, weights[r].codes + cell, 4);
                    s[r][i][0] = _mm512_dpwssd_epi32(s[r][i][0], low, _mm512_set1_epi32(two));
                    s[r][i][1] = _mm512_dpwssd_epi32(s[r][i][1], high, _mm512_set1_epi32(two));
                }
            }
        EACH(r, R) {
            if (left >> r & 1)
                continue;
            __m512i total[2];
            for (int i = 0; i < 2; i++)
                total[i] = S == 1 ? s[r][0][i] : _mm512_add_epi32(s[r][0][i], s[r][S - 1][i]);
            float *to = sums + r * stride + 32 * b;
            const __m512 step = _mm512_set1_ps(weights[r].step);
            const __m512 x = _mm512_cvtepi32_ps(_mm512_permutex2var_epi32(total[0], first, total[1]));
            const __m512 y = _mm512_cvtepi32_ps(_mm512_permutex2var_epi32(total[0], second, total[1]));
            _mm512_storeu_ps(to, _mm512_fmadd_ps(x, step, _mm512_loadu_ps(to)));
            _mm512_storeu_ps(to + 16, _mm512_fmadd_ps(y, step, _mm512_loadu_ps(to + 16)));
        }
    }
}

// The codes of some rows of queries, and of the weights of a tile; none if keys or values are in no blocks of codes. `scores`
// and `add` leave rows to floats: they give a bit for each.
struct Coder {
    const int key, value; // types
    const long key_blocks, value_blocks;
    CodedQuery *queries = nullptr; // by row and block
    bool *usual = nullptr;         // by row
    CodedWeights *weights = nullptr;

    Coder(const Call &call, long rows, Memory &memory)
        : key(call.key->type), value(call.value->type), key_blocks(call.d() / 32), value_blocks(call.dv() / 32) {
        if (in_blocks(key) && has_vnni()) {
            queries = (CodedQuery *)memory.floats(rows * key_blocks * sizeof(CodedQuery) / 4);
            usual = (bool *)memory.floats(rows);
        }
        if (in_blocks(value) && has_vnni())
            weights = (CodedWeights *)memory.floats(value_blocks * TOGETHER * sizeof(CodedWeights) / 4);
    }

    static bool in_blocks(int type) { return type == Q8_0 || type == Q4_0; }

    void encode(long row, const float *query) {
        if (queries)
            usual[row] = encode_query(query, key_blocks, key == Q8_0 ? 128 : 8, queries + row * key_blocks);
    }

    template <int R> unsigned scores(long row, const Rows &keys, long cells, float *to) const {
        const auto go = key == Q8_0 ? coded_scores<R, CodesQ8_0> : coded_scores<R, CodesQ4_0>;
        if (!queries || !go(queries + row * key_blocks, key_blocks, keys, cells, to))
            return ALL<R>;
        unsigned left = 0;
        for (int r = 0; r < R; r++)
            left |= !usual[row + r] << r;
        return left;
    }

    template <int R> unsigned add(float *sums, long stride, const Rows &values, long cells, const float *shares) const {
        if (!weights)
            return ALL<R>;
        const auto encode = value == Q8_0 ? encode_weights<R, CodesQ8_0> : encode_weights<R, CodesQ4_0>;
        const auto add = value == Q8_0 ? add_coded<R, CodesQ8_0> : add_coded<R, CodesQ4_0>;
        const unsigned left = encode(values, shares, value_blocks, weights);
        if (left != ALL<R>)
            add(sums, stride, values, cells, weights, value_blocks, left);
        return left;
    }
};

#undef CODED
