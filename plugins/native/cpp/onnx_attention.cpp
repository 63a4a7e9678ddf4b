// Custom ops of attention for ONNX Runtime; see attention.cpp.

#include "attention_call.h"
#include "onnx_runtime.h"

extern "C" void backbay_visible_cells(ggml_tensor *result, int thread, int threads, void *sizes);
extern "C" void backbay_attention(ggml_tensor *result, int thread, int threads, void *numbers);
extern "C" void backbay_attention_parts(ggml_tensor *result, int thread, int threads, void *numbers);
extern "C" void backbay_attention_sum(ggml_tensor *result, int thread, int threads, void *history);

namespace {

constexpr long UNITS = 128;         // of work: enough for all threads
constexpr long PART = 256;          // cells of a part, least
constexpr long MOST_PARTS = 32;     // of the cells of a tile
constexpr long PRODUCTS = 1L << 18; // of a thread's part of a call, about

void *pointer_of(uint32_t low, uint32_t high) { return (void *)((uint64_t)high << 32 | low); }

struct CellsKernel {
    static constexpr const char *NAME = "Cells";
    static constexpr ort::Element TYPES[] = {ort::ANY}, RESULT = ort::INT32; // the mask, with a row for each query
    static constexpr size_t NEEDED = 1;
    const int64_t group; // heads that share keys

    explicit CellsKernel(const ort::Info *info) : group(ort::attribute_of<int64_t>(info, "group")) {}

    void run(const ort::Run &run) const {
        ggml_tensor mask = run.input(0).tensor();
        const long queries = mask.ne[1], tile = tile_of(group);
        ggml_tensor table = run.output({smaller(queries, quotient(queries, tile) + SPLITS), HEADER + mask.ne[0]}, ort::INT32).tensor();
        table.src[0] = &mask;
        backbay_visible_cells(&table, 0, 1, pointer_of((uint32_t)queries, (uint32_t)tile));
    }
};

struct AttentionKernel {
    static constexpr const char *NAME = "Attention";
    static constexpr ort::Element TYPES[] = {ort::FLOAT, ort::ANY, ort::ANY, ort::FLOAT, ort::ANY, ort::INT32}; // query, key, value, sinks, mask, table
    static constexpr ort::Element RESULT = ort::FLOAT;
    static constexpr size_t NEEDED = 3;
    const float scale, softcap;
    const int64_t heads, shared, width, value_width; // query heads, key heads, and numbers of a key and of a value, which may come in any shape

    explicit AttentionKernel(const ort::Info *info)
        : scale(ort::attribute_of<float>(info, "scale")), softcap(ort::attribute_of<float>(info, "softcap")),
          heads(ort::attribute_of<int64_t>(info, "heads")), shared(ort::attribute_of<int64_t>(info, "shared")),
          width(ort::attribute_of<int64_t>(info, "width")), value_width(ort::attribute_of<int64_t>(info, "value_width")) {}

    void run(const ort::Run &run) const {
        ggml_tensor operands[6] = {run.input(0).shaped({heads, width}).tensor(), run.input(1).shaped({shared, width}).tensor(),
                                   run.input(2).shaped({shared, value_width}).tensor()};
        const ggml_tensor &query = operands[0], &key = operands[1], &value = operands[2];
        const bool masked = run.has(4);
        int count = 3;
        for (size_t n : {4, 5, 3})
            if (run.has(n))
                operands[count++] = run.input(n).tensor();
        ggml_tensor y = run.output({query.ne[2], query.ne[1], value.ne[0]}).tensor();
        const long products = query.ne[1] * query.ne[2] * key.ne[2] * (key.ne[0] + value.ne[0]);
        const long threads = smaller(quotient(products, PRODUCTS), UNITS), parts = parts_of(query, key);
        if (parts == 1) {
            give(y, operands, count);
            run.parts(threads, [&](int part, int all) { backbay_attention(&y, part, all, numbers()); });
            return;
        }
        static thread_local std::vector<float> sums; // kept for later calls
        sums.resize((value.ne[0] + 2) * parts * query.ne[1] * query.ne[2]);
        ggml_tensor made = ort::Array{ort::FLOAT, sums.data(), {query.ne[2], query.ne[1], parts, value.ne[0] + 2}}.tensor();
        give(made, operands, count);
        run.parts(threads, [&](int part, int all) { backbay_attention_parts(&made, part, all, numbers()); });
        ggml_tensor summed[3] = {made};
        int others = 1;
        for (int n = masked ? 4 : 3; n < count; n++)
            summed[others++] = operands[n];
        give(y, summed, others);
        backbay_attention_sum(&y, 0, 1, (void *)(intptr_t)key.ne[2]);
    }

    static void give(ggml_tensor &to, ggml_tensor *operands, int count) {
        for (int n = 0; n < count; n++)
            to.src[n] = operands + n;
    }

    void *numbers() const {
        uint32_t low, high;
        memcpy(&low, &scale, 4);
        memcpy(&high, &softcap, 4);
        return pointer_of(low, high);
    }

    static long parts_of(const ggml_tensor &query, const ggml_tensor &key) {
        const long tile = tile_of(query.ne[1] / key.ne[1]), units = quotient(query.ne[2], tile) * key.ne[1];
        return larger(1, smaller(smaller(quotient(UNITS, units), quotient(key.ne[2], PART)), MOST_PARTS));
    }
};

} // namespace

const ort::Op *ort::cells_op() { return op<CellsKernel>(); }
const ort::Op *ort::attention_op() { return op<AttentionKernel>(); }
