// Custom ops of recurrences for ONNX Runtime; see recurrence_call.h. Their result has all outputs, then all states behind them.

#include "onnx_kernels.h"
#include "recurrence_call.h"

using namespace ort;

namespace {

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

const Op *ort::delta_rule_op() { return op<DeltaRuleKernel>(); }
const Op *ort::selective_scan_op() { return op<SelectiveScanKernel>(); }
