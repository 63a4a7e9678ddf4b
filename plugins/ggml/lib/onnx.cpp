// Custom ops for ONNX Runtime: products of quantized weights as they lie in model files, their rows, attention, recurrences.
//
// Columns     columns in codes, once for all weights that they meet
// Products    the products of weights and columns in codes
// Rows        rows of weights by number, decoded
// Cells       the table of the cells that queries see, from a mask
// Attention   attention over a history
// Silu        x * sigmoid(x), times another factor if there is one
// DeltaRule, SelectiveScan   the recurrences of the ops of these names

#include "decoding.h"
#include "onnx_kernels.h"

ort::Table ort::table;

extern "C" void backbay_columns(ggml_tensor *result, int thread, int threads, void *format);
extern "C" void backbay_gates(const float *x, const float *up, float *y, long first, long end);
extern "C" void backbay_products(ggml_tensor *result, int thread, int threads, void *format);

using namespace ort;

namespace {

constexpr long CODES = sizeof(Entry) / sizeof(float); // floats of 32 numbers of a column in codes
long quotient(long a, long b) { return (a + b - 1) / b; }

constexpr long GROUP = 48; // rows that are multiplied together, most
constexpr long BYTES = 200 << 10; // of weights that a part of a product reads, about
constexpr long NUMBERS = 1 << 15; // of a gate, in a part
constexpr long ROWS = 8; // that are decoded, in a part
constexpr long BLOCKS = 1024; // of columns, in a part

struct ColumnsKernel {
    static constexpr const char *NAME = "Columns";
    static constexpr Element TYPES[] = {FLOAT}, RESULT = FLOAT;
    static constexpr size_t NEEDED = 1;
    const int64_t format;

    explicit ColumnsKernel(const Info *info) : format(attribute_of<int64_t>(info, "format")) {}

    void run(const Run &run) const {
        const Array x = run.input(0);
        std::vector<int64_t> extents = x.extents;
        extents.back() = x.last() / BLOCK * CODES;
        const Array codes = run.output(extents);
        ggml_tensor from = x.matrix(sizeof(float)), to = codes.matrix(sizeof(float));
        to.src[0] = &from;
        if (x.rows())
            run.parts(quotient(x.rows() * x.last() / BLOCK, BLOCKS),
                      [&](int part, int parts) { backbay_columns(&to, part, parts, (void *)format); });
    }
};

struct ProductsKernel {
    static constexpr const char *NAME = "Products";
    static constexpr Element TYPES[] = {UINT8, FLOAT, UINT8}, RESULT = FLOAT; // weights, columns in codes, the next product's weights
    static constexpr size_t NEEDED = 2;
    const int64_t format, first, rows; // of the matrix of weights

    explicit ProductsKernel(const Info *info)
        : format(attribute_of<int64_t>(info, "format")), first(attribute_of<int64_t>(info, "first")),
          rows(attribute_of<int64_t>(info, "rows")) {}

    void run(const Run &run) const {
        const Array weights = run.input(0), codes = run.input(1);
        std::vector<int64_t> extents = codes.extents;
        extents.back() = rows;
        const Array y = run.output(extents);
        ggml_tensor w = weights.matrix(1), entries = codes.matrix(sizeof(float)), to = y.matrix(sizeof(float));
        w.data = (char *)w.data + first * w.nb[1];
        w.ne[0] = codes.last() / CODES * BLOCK, w.ne[1] = rows;
        to.src[0] = &w, to.src[1] = &entries;
        ggml_tensor next;
        if (run.has(2))
            next = run.input(2).matrix(1), to.src[2] = &next;
        if (codes.rows())
            run.parts(parts(weights.last(), codes.rows()),
                      [&](int, int parts) { backbay_products(&to, Turns::ANY, parts, (void *)format); });
    }

    // Few enough that each has work. Threads share the work of all parts.
    long parts(long row, long columns) const {
        const long groups = quotient(rows, GROUP), bytes = rows * row * quotient(columns, 8);
        const long wanted = quotient(bytes, BYTES);
        return wanted < groups ? wanted : groups;
    }
};

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
        run.parts(quotient(count, ROWS), [&](int part, int parts) {
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
        long count = 1;
        for (const int64_t extent : x.extents)
            count *= extent;
        run.parts(quotient(count, NUMBERS), [&](int part, int parts) {
            backbay_gates((const float *)x.data, up, (float *)y.data, count * part / parts, count * (part + 1) / parts);
        });
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
        for (const ort::Op *op : {ort::op<ColumnsKernel>(), ort::op<ProductsKernel>(), ort::op<RowsKernel>(), ort::op<SiluKernel>(), ort::cells_op(), ort::attention_op(),
                              ort::delta_rule_op(), ort::selective_scan_op()})
            if (!status)
                status = ort::add_op(domain, op);
        if (status)
            return status;
    }
    return ort::add_domain(options, domain);
}
