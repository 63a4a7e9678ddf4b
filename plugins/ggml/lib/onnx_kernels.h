// Kernels of custom ops: their operands, their result, and the loop over threads.
#pragma once

#include "onnx_runtime.h"
#include "tensor.h"

#include <vector>

namespace ort {

// A status that ends the run of a kernel.
struct Failed {
    Status *status;
};

static inline void need(Status *status) {
    if (status)
        throw Failed{status};
}

// A tensor by its extents, outermost first.
struct Array {
    Element element;
    void *data;
    std::vector<int64_t> extents;

    long last() const { return extents.back(); }
    long rows() const { // of the innermost dimension
        long count = 1;
        for (size_t i = 0; i + 1 < extents.size(); i++)
            count *= extents[i];
        return count;
    }
    // As a matrix of rows of an element size, for the functions that ggml calls too.
    ggml_tensor matrix(long element) const {
        ggml_tensor made = {};
        const long row = last() * element, all = row * rows();
        made.ne[0] = last(), made.ne[1] = rows(), made.ne[2] = made.ne[3] = 1;
        made.nb[0] = element, made.nb[1] = row, made.nb[2] = made.nb[3] = all;
        made.data = data;
        return made;
    }
};

// A run of a kernel.
class Run {
    Context *context;

  public:
    explicit Run(Context *context) : context(context) {}

    // Whether an optional input is there.
    bool has(size_t n) const {
        const Value *value = nullptr;
        need(ort::input(context, n, &value));
        return value;
    }

    Array input(size_t n) const {
        const Value *value = nullptr;
        need(ort::input(context, n, &value));
        Array found = {};
        Shape *shape = nullptr;
        need(shape_of(value, &shape));
        size_t rank = 0;
        Status *status = element_of(shape, &found.element);
        if (!status)
            status = rank_of(shape, &rank);
        found.extents.resize(rank);
        if (!status)
            status = extents_of(shape, found.extents.data(), rank);
        release(shape);
        need(status);
        need(data_of(value, &found.data));
        return found;
    }

    Array output(const std::vector<int64_t> &extents, Element element = FLOAT) const {
        Value *value = nullptr;
        Array made = {element, nullptr, extents};
        need(ort::output(context, 0, extents.data(), extents.size(), &value));
        need(data_of(value, &made.data));
        return made;
    }

    // Calls a function of (part, parts) for all parts, on the threads of the session.
    template <class Part> void parts(long count, const Part &part) const {
        struct Loop {
            const Part &part;
            long count;
        } loop = {part, count};
        if (count <= 1)
            return part(0, 1);
        need(each(context, count, [](void *data, size_t n) { ((Loop *)data)->part((int)n, (int)((Loop *)data)->count); }, &loop));
    }
};

// An op of ONNX Runtime for a class of kernels: NAME, TYPES of inputs and RESULT, a constructor from attributes, and `run`.
template <class Kernel> static const Op *op() {
    static const Op made = [] {
        Op op = {};
        op.version = VERSION;
        op.name = [](const Op *) { return Kernel::NAME; };
        op.provider = [](const Op *) -> const char * { return nullptr; }; // the CPU
        op.input_type = [](const Op *, size_t n) { return Kernel::TYPES[n]; };
        op.inputs = [](const Op *) { return sizeof Kernel::TYPES / sizeof *Kernel::TYPES; };
        op.output_type = [](const Op *, size_t) { return Kernel::RESULT; };
        op.outputs = [](const Op *) -> size_t { return 1; };
        op.input_presence = [](const Op *, size_t n) { return n < Kernel::NEEDED ? REQUIRED : OPTIONAL; };
        op.output_presence = [](const Op *, size_t) { return REQUIRED; };
        op.input_memory = [](const Op *, size_t) { return 0; };
        op.first_version = [](const Op *) { return 1; };
        op.last_version = [](const Op *) { return INT32_MAX; };
        op.destroy = [](void *kernel) { delete (Kernel *)kernel; };
        op.make = [](const Op *, Table, const Info *info, void **kernel) -> Status * {
            try {
                *kernel = new Kernel(info);
            } catch (const Failed &failed) {
                return failed.status;
            } catch (...) {
                return failure("bad_alloc");
            }
            return nullptr;
        };
        op.compute = [](void *kernel, Context *context) -> Status * {
            try {
                ((const Kernel *)kernel)->run(Run(context));
            } catch (const Failed &failed) {
                return failed.status;
            } catch (...) {
                return failure("bad_alloc");
            }
            return nullptr;
        };
        return op;
    }();
    return &made;
}

template <class T> static T attribute_of(const Info *info, const char *name) {
    T found = 0;
    need(attribute(info, name, &found));
    return found;
}

const Op *cells_op();
const Op *attention_op();
const Op *delta_rule_op();
const Op *selective_scan_op();

} // namespace ort
