// Attention of many rows of scores (queries times heads of a group) for one instruction set, NAME.
//
// A lane of a vector is a row of scores. So maxima, exponentials and sums need no lanes of their neighbours. The keys
// and values of a tile are unpacked once for all rows. ROWS<V> x V vectors, the sums of a product, stay in registers.

constexpr long CELLS_NUMBERS = 12288; // of the keys of a tile: they stay in the nearest caches
constexpr int VECTORS = REGISTERS / 8; // of a block
constexpr int WIDTH = VECTORS * FLOATS; // lanes of a block
template <int V> constexpr int ROWS = REGISTERS * 3 / 4 / V;

// R rows of sums, V vectors wide: a times b, where a[i * row + k * step] is the element (i, k) of a.
template <int R, int V>
TARGET static inline void block(float *sums, const float *a, long row, long step, const float *b, long n, bool add) {
    Vec s[R][V];
    for (int i = 0; i < R; i++)
        for (int j = 0; j < V; j++)
            s[i][j] = add ? at(sums + (i * V + j) * FLOATS) : Vec{};
    for (long k = 0; k < n; k++) {
        Vec c[V];
        for (int j = 0; j < V; j++) {
            c[j] = at(b + (k * V + j) * FLOATS);
            asm("" : "+" REGISTER(c[j])); // else GCC reads it again for each row
        }
        for (int i = 0; i < R; i++) {
            const Vec x = all(a[i * row + k * step]);
            for (int j = 0; j < V; j++)
                s[i][j] += x * c[j];
        }
    }
    for (int i = 0; i < R; i++)
        for (int j = 0; j < V; j++)
            at(sums + (i * V + j) * FLOATS) = s[i][j];
}

template <int V>
TARGET static void product(float *sums, long rows, const float *a, long row, long step, const float *b, long n, bool add) {
    long i = 0;
    for (; i + ROWS<V> <= rows; i += ROWS<V>)
        block<ROWS<V>, V>(sums + i * V * FLOATS, a + i * row, row, step, b, n, add);
    for (; i + 2 <= rows; i += 2)
        block<2, V>(sums + i * V * FLOATS, a + i * row, row, step, b, n, add);
    if (i < rows)
        block<1, V>(sums + i * V * FLOATS, a + i * row, row, step, b, n, add);
}

// Up to WIDTH rows of scores: the query by feature, the weights of a tile by cell, sums by feature.
struct Block {
    long vectors;
    float *query, *weights, *sums, *highest, *total;

    long width() const { return vectors * FLOATS; }

    void start(long rows, long d, long dv, long cells, Memory &memory) {
        vectors = quotient(rows, FLOATS);
        query = memory.floats(d * width());
        weights = memory.floats(cells * width());
        sums = memory.floats(dv * width());
        highest = memory.floats(width());
        total = memory.floats(width());
        memset(query, 0, 4 * d * width());
        memset(sums, 0, 4 * dv * width());
        memset(total, 0, 4 * width());
        for (long i = 0; i < width(); i++)
            highest[i] = -__builtin_inff();
    }

    template <int V = 1> void multiply(float *to, long rows, const float *a, long row, long step, const float *b, long n, bool add) {
        if constexpr (V < VECTORS)
            if (vectors > V)
                return multiply<V + 1>(to, rows, a, row, step, b, n, add);
        product<V>(to, rows, a, row, step, b, n, add);
    }

    TARGET void cap(long cells, float softcap) {
        for (long i = 0; i < cells * width(); i += FLOATS)
            at(weights + i) = softcap * hyperbolic_tangent(at(weights + i));
    }

    // Make weights of scores. If a score is the highest until now, earlier sums shrink.
    TARGET void weigh(long cells, long dv) {
        const Vec none = all(-__builtin_inff());
        for (long j = 0; j < width(); j += FLOATS) {
            float *column = weights + j;
            Vec most = at(highest + j), sum = Vec{};
            for (long c = 0; c < cells; c++)
                most = larger_of(at(column + c * width()), most);
            const Vec base = most == none ? Vec{} : most;
            for (long c = 0; c < cells; c++)
                sum += at(column + c * width()) = exponential(at(column + c * width()) - base);
            const Vec shrunk = exponential(at(highest + j) - base);
            at(total + j) = at(total + j) * shrunk + sum;
            at(highest + j) = most;
            for (long i = 0; i < dv; i++)
                at(sums + i * width() + j) *= shrunk;
        }
    }
};

// Rows of scores of some heads that share keys, up to LANES: row n is of head n / queries, query n % queries.
struct Many {
    const Call &call;
    const Work &work;
    const long shared, first, rows, key_stride, value_stride;
    long tile; // cells
    float *keys, *values;
    int count = 0;
    Block blocks[LANES / WIDTH + 1];

    Many(const Call &call, const Work &work, long shared, long first, long heads, Memory &memory)
        : call(call), work(work), shared(shared), first(first), rows(heads * work.span.count),
          key_stride(quotient(call.d(), FLOATS) * FLOATS), value_stride(quotient(call.dv(), FLOATS) * FLOATS) {
        tile = larger(smaller(CELLS_NUMBERS / larger(key_stride, value_stride) / 24, 4), 1) * 24;
        keys = memory.floats(tile * key_stride);
        values = memory.floats(tile * value_stride);
        for (long n = 0; n < rows; n += WIDTH)
            blocks[count++].start(smaller(WIDTH, rows - n), call.d(), call.dv(), tile, memory);
        for (long n = 0; n < rows; n++) {
            const float *from = (const float *)Call::row(call.query, head(n), query(n), work.batch);
            const Block &block = of(n);
            for (long i = 0; i < call.d(); i++)
                block.query[i * block.width() + n % WIDTH] = from[i] * call.factor();
        }
    }

    long head(long row) const { return first + row / work.span.count; }
    long query(long row) const { return work.span.first + row % work.span.count; }
    Block &of(long row) { return blocks[row / WIDTH]; }

    void read(const ggml_tensor *x, long stride, float *to, long low, long cells) {
        for (long c = 0; c < cells; c++)
            unpack(x->type, Call::row(x, shared, work.span.cell(low + c), work.batch), x->ne[0], to + c * stride);
    }

    void hide(long low, long cells) {
        for (long c = larger(work.span.plain - low, 0); c < cells; c++)
            for (long n = 0; n < rows; n++) {
                const Block &block = of(n);
                call.hide(block.weights[c * block.width() + n % WIDTH], work.span.cell(low + c), query(n), head(n), work.batch);
            }
    }

    // The first cell from `low` on that some rows do not see, and whose values are not all finite.
    long infinite(long low, long first, long cells) const {
        for (long c = larger(larger(work.span.plain - low, 0), first); c < cells; c++)
            if (!call.finite(values + c * value_stride))
                return c;
        return cells;
    }

    // Add the values of a cell to the rows that see it, and to no others.
    void add_apart(Block &block, long c) {
        for (long j = 0; j < block.width(); j++)
            if (const float weight = block.weights[c * block.width() + j]; weight != 0)
                for (long i = 0; i < call.dv(); i++)
                    block.sums[i * block.width() + j] += weight * values[c * value_stride + i];
    }

    void add_values(Block &block, long low, long cells) {
        for (long first = 0; first < cells; first++) {
            const long end = infinite(low, first, cells);
            block.multiply(block.sums, call.dv(), values + first * value_stride, 1, value_stride,
                           block.weights + first * block.width(), end - first, true);
            if (end < cells)
                add_apart(block, end);
            first = end;
        }
    }

    void attend(long low, long cells) {
        read(call.key, key_stride, keys, low, cells);
        read(call.value, value_stride, values, low, cells);
        for (int i = 0; i < count; i++) {
            Block &block = blocks[i];
            block.multiply(block.weights, cells, keys, key_stride, 1, block.query, call.d(), false);
            if (call.softcap != 0)
                block.cap(cells, call.softcap);
        }
        if (call.mask)
            hide(low, cells);
        for (int i = 0; i < count; i++) {
            Block &block = blocks[i];
            block.weigh(cells, call.dv());
            add_values(block, low, cells);
        }
    }

    void finish() {
        for (long n = 0; n < rows; n++) {
            const Block &block = of(n);
            const long lane = n % WIDTH;
            float *to = call.target(head(n), query(n), work.batch, work.part);
            call.put(to, block.sums + lane, block.width(), block.highest[lane], block.total[lane], head(n));
        }
    }
};

// Heads [low, high) of keys with the cells of a unit of work.
static void attend_many(const Call &call, const Work &work, long low, long high) {
    const long together = larger(1, LANES / work.span.count);
    for (long shared = low; shared < high; shared++)
        for (long head = shared * call.group(); head < (shared + 1) * call.group(); head += together) {
            Memory memory;
            const long heads = smaller(together, (shared + 1) * call.group() - head);
            Many many(call, work, shared, head, heads, memory);
            for (long cell = work.low; cell < work.high; cell += many.tile)
                many.attend(cell, smaller(many.tile, work.high - cell));
            many.finish();
        }
}
