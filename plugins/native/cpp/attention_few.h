// Attention of a few rows of scores (queries times heads of a group) for one instruction set, NAME.
//
// A lane of a vector is a feature, so keys and values are read where they lie, once for up to four rows. Tiles of cells
// go through all heads before the next tile: so the memory of a cache is read in order.

// Scores of R rows with the cells of a tile. Rows of queries, and of scores, are apart by `stride` and TILE.
template <int R, class Row>
TARGET static void scores(const float *query, long stride, const Rows &keys, long cells, long vectors, float *to) {
    constexpr int AT_ONCE = FLOATS / (R == 3 ? 4 : R); // cells
    for (long low = 0; low < cells; low += AT_ONCE) {
        Vec s[FLOATS] = {};
        for (long j = 0; j < vectors; j++)
            EACH(c, AT_ONCE) {
                const Vec k = Row::read(keys.at(low + c), j);
                EACH(r, R)
                    s[r * AT_ONCE + c] += k * at(query + r * stride + j * FLOATS);
            }
        for (int c = 0; c < AT_ONCE; c++)
            keys.fetch(low + c);
        const Vec found = lane_totals<FLOATS>(s);
        for (int r = 0; r < R; r++)
            memcpy(to + r * TILE + low, (const float *)&found + r * AT_ONCE, 4 * AT_ONCE);
    }
}

// Weights of R rows of scores times the scales of each block of the values: so codes are numbers.
template <int R, class Row>
TARGET static void scale_weights(const Rows &values, const float *weights, long blocks, float *to) {
    for (long b = 0; b < blocks; b++, to += R * TILE) {
        uint16_t halves[TILE];
        values.read_scales(b * Row::BLOCK, halves);
        for (long c = 0; c < TILE; c += FLOATS) {
            const Vec scale = (Vec)HALF_FLOATS(halves + c);
            for (int r = 0; r < R; r++)
                at(to + r * TILE + c) = at(weights + r * TILE + c) * scale;
        }
    }
}

// Add weighted values to the sums of R rows. Weights are those of the block in which vector j lies.
template <int R, int V, class Row>
TARGET static inline void add_vectors(float *sums, long stride, const Rows &values, long cells, const float *weights, long j) {
    Vec s[R][V];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++)
            s[r][v] = at(sums + r * stride + (j + v) * FLOATS);
    for (long c = 0; c < cells; c++) {
        Vec x[V];
        for (int v = 0; v < V; v++)
            if constexpr (Row::BLOCK)
                x[v] = Row::codes(values.at(c), j + v);
            else
                x[v] = Row::read(values.at(c), j + v);
        if (j == 0)
            values.fetch(c);
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++) {
                const long block = Row::BLOCK ? (j % (32 / FLOATS) + v) / (32 / FLOATS) : 0;
                s[r][v] += x[v] * weights[(block * R + r) * TILE + c];
            }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++)
            at(sums + r * stride + (j + v) * FLOATS) = s[r][v];
}

// `scaled` holds the weights of all blocks, if the values have scales.
template <int R, class Row>
TARGET static void add(float *sums, long stride, const Rows &values, long cells, const float *weights, long vectors, float *scaled) {
    constexpr int V = REGISTERS / 2 / R < 4 ? REGISTERS / 2 / R : 4;
    if (Row::BLOCK) {
        scale_weights<R, Row>(values, weights, vectors * FLOATS / 32, scaled);
        weights = scaled;
    }
    const long each = Row::BLOCK ? R * TILE : 0;
    long j = 0;
    for (; j + V <= vectors; j += V)
        add_vectors<R, V, Row>(sums, stride, values, cells, weights + j * FLOATS / 32 * each, j);
    for (; j < vectors; j++)
        add_vectors<R, 1, Row>(sums, stride, values, cells, weights + j * FLOATS / 32 * each, j);
}

template <int HALF> TARGET INLINED Vec highest_lane(Vec x) {
    if constexpr (HALF == 0)
        return x;
    else {
        Ints other;
        for (int i = 0; i < FLOATS; i++)
            other[i] = i ^ HALF;
        return highest_lane<HALF / 2>(larger_of(__builtin_shuffle(x, other), x));
    }
}

// Make weights of a row's scores. If a score is the highest until now, earlier sums shrink.
TARGET static inline void weigh_row(float &highest, float *total, float *sums, long vectors, float *scores, long cells) {
    for (long c = cells; c < TILE; c++)
        scores[c] = -__builtin_inff();
    Vec most = all(highest), sum = {};
    for (long c = 0; c < TILE; c += FLOATS)
        most = larger_of(at(scores + c), most);
    most = highest_lane<FLOATS / 2>(most);
    const Vec base = most == all(-__builtin_inff()) ? Vec{} : most;
    for (long c = 0; c < TILE; c += FLOATS)
        sum += at(scores + c) = exponential(at(scores + c) - base);
    if (most[0] != highest) {
        const Vec shrunk = exponential(all(highest) - base);
        at(total) *= shrunk;
        for (long i = 0; i < vectors; i++)
            at(sums + i * FLOATS) *= shrunk;
    }
    at(total) += sum;
    highest = most[0];
}

TARGET static void cap(float *scores, float softcap) {
    for (long c = 0; c < TILE; c += FLOATS)
        at(scores + c) = softcap * hyperbolic_tangent(at(scores + c));
}

#ifndef CODES
struct Coder { // there is no code for blocks of codes
    Coder(const Call &, long, Memory &) {}
    void encode(long, const float *) {}
    template <int R> unsigned scores(long, const Rows &, long, float *) const { return ALL<R>; }
    template <int R> unsigned add(float *, long, const Rows &, long, const float *) const { return ALL<R>; }
};
#endif

// Keys or values of a tile: where the rows of its cells lie, counted from those of cell 0.
struct Side {
    const ggml_tensor *x;
    long vectors;
    float *unpacked; // rows that do not fill whole vectors
    long offsets[TILE], ahead[TILE], unpacked_offsets[TILE];
    size_t fetched;

    Side(const ggml_tensor *x, Memory &memory) : x(x), vectors(quotient(x->ne[0], FLOATS)) {
        unpacked = whole() ? nullptr : memory.floats(TILE * stride());
    }

    bool whole() const { return x->ne[0] % FLOATS == 0; }
    long stride() const { return vectors * FLOATS; }
    int type() const { return whole() ? x->type : F32; }
    // The cells of a tile, and those of the next one.
    void find(const Work &work, long low, long cells) {
        for (long c = 0; c < TILE; c++) {
            offsets[c] = work.span.cell(low + smaller(c, cells - 1)) * x->nb[2];
            ahead[c] = work.span.cell(smaller(low + TILE + c, work.span.total - 1)) * x->nb[2];
        }
        fetched = low + TILE < work.span.total ? row_size(x->type, x->ne[0]) : 0;
        for (long c = 0; c < TILE && !whole(); c++)
            unpacked_offsets[c] = 4 * stride() * smaller(c, cells - 1);
    }

    Rows rows(const Work &work, long shared, long cells) {
        const char *first = Call::row(x, shared, 0, work.batch);
        if (whole())
            return {first, offsets, first, ahead, fetched};
        for (long c = 0; c < cells; c++)
            unpack(x->type, first + offsets[c], x->ne[0], unpacked + c * stride());
        return {(const char *)unpacked, unpacked_offsets, first, ahead, fetched};
    }
};

// Run all R rows, or each that has a bit in `left`, from a first one on.
template <int R, class Run> static void by_floats(unsigned left, const Run &run) {
    if (left == ALL<R>)
        return run(std::integral_constant<int, R>(), 0);
    for (long r = 0; r < R; r++)
        if (left >> r & 1)
            run(std::integral_constant<int, 1>(), r);
}

struct Few {
    const Call &call;
    const Work &work;
    const long count; // of the rows of a head of keys
    Side keys, values;
    float *queries, *sums, *highest, *total; // by head and row
    float *weights, *scaled, *row_of_values;
    Coder coder;

    Few(const Call &call, const Work &work, long heads, Memory &memory)
        : call(call), work(work), count(work.span.count * call.group()), keys(call.key, memory), values(call.value, memory),
          coder(call, heads * count, memory) {
        queries = memory.floats(heads * count * keys.stride());
        sums = memory.floats(heads * count * values.stride());
        highest = memory.floats(heads * count);
        total = memory.floats(heads * count * FLOATS);
        weights = memory.floats(TOGETHER * TILE);
        scaled = memory.floats(quotient(call.dv(), 32) * TOGETHER * TILE);
        row_of_values = memory.floats(values.stride());
    }

    // Whose row `n` of a head of keys is.
    long query(long n) const { return work.span.first + n / call.group(); }
    long head(long shared, long n) const { return shared * call.group() + n % call.group(); }

    TARGET void start(long shared, long slot) {
        const float factor = call.factor();
        for (long n = 0; n < count; n++) {
            const long row = slot * count + n;
            const float *from = (const float *)Call::row(call.query, head(shared, n), query(n), work.batch);
            float *to = queries + row * keys.stride();
            unpack_row<RowF32>((const char *)from, call.d(), to);
            for (long i = 0; i < keys.stride(); i += FLOATS)
                at(to + i) *= factor;
            coder.encode(row, to);
            memset(sums + row * values.stride(), 0, 4 * values.stride());
            memset(total + row * FLOATS, 0, 4 * FLOATS);
            highest[row] = -__builtin_inff();
        }
    }

    const float *unpacked_value(long shared, long cell) {
        unpack(call.value->type, Call::row(call.value, shared, work.span.cell(cell), work.batch), call.dv(), row_of_values);
        return row_of_values;
    }

    // Whether the values of all cells of a tile that only some rows see are finite.
    bool finite(long shared, long low, long cells) {
        for (long c = larger(work.span.plain - low, 0); c < cells; c++)
            if (!call.finite(unpacked_value(shared, low + c)))
                return false;
        return true;
    }

    // Add the values of each cell to the rows that see it, and to no others.
    void add_seen(float *sum, long rows, long shared, long low, long cells) {
        for (long c = 0; c < cells; c++) {
            const float *value = unpacked_value(shared, low + c);
            for (long r = 0; r < rows; r++)
                if (const float weight = weights[r * TILE + c]; weight != 0)
                    for (long i = 0; i < call.dv(); i++)
                        sum[r * values.stride() + i] += weight * value[i];
        }
    }

    // The rows from `first` on, at least R and at most TOGETHER.
    template <int R>
    void tile(const Rows &key, const Rows &value, long shared, long slot, long first, long low, long cells, bool plain) {
        if constexpr (R < TOGETHER)
            if (count - first > R)
                return tile<R + 1>(key, value, shared, slot, first, low, cells, plain);
        const long row = slot * count + first;
        float *sum = sums + row * values.stride();
        by_floats<R>(coder.scores<R>(row, key, cells, weights), [&](auto rows, long r) {
            const float *query = queries + (row + r) * keys.stride();
            by_type(keys.type(), [&](auto kind) {
                scores<rows(), decltype(kind)>(query, keys.stride(), key, cells, keys.vectors, weights + r * TILE);
            });
        });
        for (long r = 0; r < R; r++) {
            float *scores = weights + r * TILE;
            if (call.softcap != 0)
                cap(scores, call.softcap);
            for (long c = larger(work.span.plain - low, 0); c < cells; c++)
                call.hide(scores[c], work.span.cell(low + c), query(first + r), head(shared, first + r), work.batch);
            weigh_row(highest[row + r], total + (row + r) * FLOATS, sum + r * values.stride(), values.vectors, scores, cells);
        }
        if (!plain)
            return add_seen(sum, R, shared, low, cells);
        by_floats<R>(coder.add<R>(sum, values.stride(), value, cells, weights), [&](auto rows, long r) {
            float *to = sum + r * values.stride();
            by_type(values.type(), [&](auto kind) {
                add<rows(), decltype(kind)>(to, values.stride(), value, cells, weights + r * TILE, values.vectors, scaled);
            });
        });
    }

    void tile(long low, long cells, long heads, long slots) {
        keys.find(work, low, cells);
        values.find(work, low, cells);
        for (long slot = 0; slot < slots; slot++) {
            const long shared = heads + slot;
            Rows key = keys.rows(work, shared, cells), value = values.rows(work, shared, cells);
            const bool plain = finite(shared, low, cells);
            for (long first = 0; first < count; first += TOGETHER, key.size = value.size = 0)
                tile<1>(key, value, shared, slot, first, low, cells, plain);
        }
    }

    void finish(long shared, long slot) {
        for (long n = 0; n < count; n++) {
            const long row = slot * count + n;
            float whole = 0;
            for (long i = 0; i < FLOATS; i++)
                whole += total[row * FLOATS + i];
            float *to = call.target(head(shared, n), query(n), work.batch, work.part);
            call.put(to, sums + row * values.stride(), 1, highest[row], whole, head(shared, n));
        }
    }
};

// Heads [low, high) of keys with the cells of a unit of work.
static void attend_few(const Call &call, const Work &work, long low, long high) {
    Memory memory;
    Few few(call, work, high - low, memory);
    for (long shared = low; shared < high; shared++)
        few.start(shared, shared - low);
    for (long cell = work.low; cell < work.high; cell += TILE)
        few.tile(cell, smaller(TILE, work.high - cell), low, high - low);
    for (long shared = low; shared < high; shared++)
        few.finish(shared, shared - low);
}
