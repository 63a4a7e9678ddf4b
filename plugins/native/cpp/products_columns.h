// Columns in codes of 8 bits: each block of 32 numbers has its scale.

// A number that is too small for a scale's inverse is enlarged first.
constexpr float TINY = 1e-30f, ENLARGED = 1e20f, LARGEST_CODE = 127;

INLINE int sum_of_codes(const int8_t *codes) { // 16 of them
    const __m128i above = _mm_xor_si128(_mm_loadu_si128((const __m128i *)codes), _mm_set1_epi8((char)128));
    const __m128i sums = _mm_sad_epu8(above, _mm_setzero_si128());
    return _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 16 * 128;
}

// A block with NaN makes NaN of all products. One with infinities makes infinities, or NaN, of the weights that meet them.
TARGET static void encode_unusual(const float *x, float highest, Entry *entry) {
    entry->scale = highest;
    for (int i = 0; i < BLOCK; i++)
        entry->codes[i] = highest == __builtin_inff() && __builtin_fabsf(x[i]) == highest ? (x[i] > 0 ? 1 : -1) : 0;
}

// Codes of 8 bits are moved above 0; without VNNI, products of two are added up in 16 bits, which they overflow unless their
// signs go to the columns' codes.
#ifdef VNNI
constexpr Scales EIGHT_BITS = ONE;
#else
constexpr Scales EIGHT_BITS = SIGNED;
#endif

// What is subtracted from the codes of a format.
constexpr int centre_of(Format format) { return format == Q8_0 && EIGHT_BITS == SIGNED ? 0 : LAYOUTS[format].centre; }

INLINE void encode(const float *x, Format format, Entry *entry) {
    const float highest = peak(x);
    if (!(highest < __builtin_inff())) {
        encode_unusual(x, highest, entry);
    } else if (highest < TINY) {
        float larger[BLOCK];
        for (int i = 0; i < BLOCK; i++)
            larger[i] = x[i] * ENLARGED;
        entry->scale = highest / LARGEST_CODE;
        round_block(larger, floats(highest > 0 ? LARGEST_CODE / (highest * ENLARGED) : 0), entry->codes);
    } else {
        entry->scale = highest / LARGEST_CODE;
        round_block(x, floats(LARGEST_CODE / highest), entry->codes);
    }
    const int sums[2] = {sum_of_codes(entry->codes), sum_of_codes(entry->codes + 16)};
    const bool apart = LAYOUTS[format].scales == HALVES;
    entry->bias[0] = -centre_of(format) * (apart ? sums[0] : sums[0] + sums[1]);
    entry->bias[1] = -centre_of(format) * sums[1];
    entry->minus = -entry->scale * (float)(sums[0] + sums[1]);
}

// The part of all columns that belongs to a thread; `stride` floats lie from a column to the next.
TARGET static void encode_columns(const float *x, long stride, Format format, const Columns &columns, int thread, int threads) {
    const long tiles = columns.tiles(), end = columns.count * columns.blocks * (thread + 1) / threads;
    long at = columns.count * columns.blocks * thread / threads;
    for (long tile = 0; tile < tiles && at < end; tile++) {
        const long first = columns.first(tile), wide = columns.first(tile + 1) - first;
        for (; at < (first + wide) * columns.blocks && at < end; at++) {
            const long block = (at - first * columns.blocks) / wide, column = (at - first * columns.blocks) % wide;
            encode(x + (first + column) * stride + block * BLOCK, format, columns.block(tile, block) + column);
        }
    }
}

// The part of all columns that belongs to a thread, in codes for each expert that they meet: as many pairs in turn share a column.
TARGET static void encode_pairs(const Source &x, long sharing, const Pairs &pairs, Format format, const Products &products, int thread, int threads) {
    const long blocks = products.weights.blocks, all = pairs.count / sharing * blocks, end = all * (thread + 1) / threads;
    for (long at = all * thread / threads, next; at < end; at = next) {
        const long column = at / blocks, first = at % blocks, pair = column * sharing;
        next = at - first + blocks < end ? at - first + blocks : end;
        const Codes made = products.codes(pairs, pair);
        for (long block = first; block < first + next - at; block++)
            encode(x.column(column) + block * BLOCK, format, made.block(block));
        for (long n = 1; n < sharing; n++) {
            const Codes copy = products.codes(pairs, pair + n);
            for (long block = first; block < first + next - at; block++)
                *copy.block(block) = *made.block(block);
        }
    }
}
