// The part of ONNX Runtime's C interface that custom ops need, by number, and kernels by it.
//
// ONNX Runtime never moves the members of its table, it only adds some at the end; so the numbers hold for all later
// versions. Functions return null, or a status that describes an error.
#pragma once

#include "tensor.h"

#include <vector>

namespace ort {

struct Status;
struct Context; // of a run of a kernel
struct Info;    // of a kernel: its attributes
struct Value;
struct Options;
struct Domain;
struct Op;

constexpr uint32_t VERSION = 24; // the first that shows the extents of a value where they lie
enum Element { ANY = 0, FLOAT = 1, UINT8 = 2, INT32 = 6, INT64 = 7, FLOAT16 = 10, BFLOAT16 = 16 };
enum Error { FAIL = 1 };
enum Presence { REQUIRED = 0, OPTIONAL = 1 }; // of an input

using Member = const void *;
using Table = const Member *;

struct Base {
    Table (*table)(uint32_t version);
    const char *(*version)();
};

extern Table table;

template <int NUMBER, class... Given> static inline Status *call(Given... given) {
    return ((Status * (*)(Given...)) table[NUMBER])(given...);
}

static inline Status *failure(const char *message) { return call<0>((int)FAIL, message); }
static inline Status *make_domain(const char *name, Domain **made) { return call<26>(name, made); }
static inline Status *add_op(Domain *domain, const Op *op) { return call<27>(domain, op); }
static inline Status *add_domain(Options *options, Domain *domain) { return call<28>(options, domain); }
static inline Status *data_of(const Value *value, void **data) { return call<51>(value, data); }
static inline Status *attribute(const Info *info, const char *name, float *found) { return call<85>(info, name, found); }
static inline Status *attribute(const Info *info, const char *name, int64_t *found) { return call<86>(info, name, found); }
static inline Status *input(const Context *context, size_t n, const Value **found) { return call<90>(context, n, found); }
static inline Status *output(Context *context, size_t n, const int64_t *extents, size_t rank, Value **made) {
    return call<91>(context, n, extents, rank, made);
}
// Calls a function for all numbers below `count`, on the threads of the session.
static inline Status *each(const Context *context, size_t count, void (*function)(void *, size_t), void *data) {
    return call<274>(context, function, count, (size_t)0, data);
}
// Its element, and its extents where they lie.
static inline Status *shape_of(const Value *value, Element *element, const int64_t **extents, size_t *rank) {
    return call<414>(value, element, extents, rank);
}

// OrtCustomOp. Functions of older versions of the interface are null.
struct Op {
    uint32_t version;
    Member make_before;
    const char *(*name)(const Op *);
    const char *(*provider)(const Op *);
    Element (*input_type)(const Op *, size_t);
    size_t (*inputs)(const Op *);
    Element (*output_type)(const Op *, size_t);
    size_t (*outputs)(const Op *);
    Member compute_before;
    void (*destroy)(void *kernel);
    Presence (*input_presence)(const Op *, size_t);
    Presence (*output_presence)(const Op *, size_t);
    int (*input_memory)(const Op *, size_t);
    Member variadic[4];
    Status *(*make)(const Op *, Table, const Info *, void **kernel);
    Status *(*compute)(void *kernel, Context *);
    Member infer_shapes;
    int (*first_version)(const Op *);
    int (*last_version)(const Op *);
    Member in_place[4];
};

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
    long count() const {
        long all = 1;
        for (const int64_t extent : extents)
            all *= extent;
        return all;
    }
    // The same numbers with other innermost extents, and one before them that holds the rest.
    Array shaped(std::vector<int64_t> inner) const {
        long each = 1;
        for (const int64_t extent : inner)
            each *= extent;
        if (each <= 0 || count() % each)
            throw Failed{failure("an operand cannot have this shape")};
        inner.insert(inner.begin(), count() / each);
        return {element, data, inner};
    }
    // The extents that these numbers are, for so many elements; -1 stands for what is left.
    std::vector<int64_t> extents_of(long elements) const {
        const int64_t *const numbers = (const int64_t *)data;
        std::vector<int64_t> found(numbers, numbers + count());
        long each = 1;
        for (const int64_t extent : found)
            each *= extent == -1 ? 1 : extent;
        for (int64_t &extent : found)
            if (extent == -1 && each)
                extent = elements / each, each *= extent;
        if (each != elements)
            throw Failed{failure("a result cannot have this shape")};
        return found;
    }
    // A tensor of ggml; the innermost dimension comes first there.
    ggml_tensor tensor() const {
        const size_t rank = extents.size();
        const bool half = element == FLOAT16 || element == BFLOAT16;
        ggml_tensor made = {};
        made.type = element == FLOAT16 ? F16 : element == BFLOAT16 ? BF16 : element == INT32 ? I32 : F32;
        size_t bytes = element == UINT8 ? 1 : half ? 2 : 4;
        for (size_t i = 0; i < 4; i++) {
            made.ne[i] = i < rank ? extents[rank - 1 - i] : 1;
            made.nb[i] = bytes;
            bytes *= made.ne[i];
        }
        made.data = data;
        return made;
    }
    ggml_tensor matrix() const { return Array{element, data, {rows(), last()}}.tensor(); }
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
        const int64_t *extents = nullptr;
        size_t rank = 0;
        need(shape_of(value, &found.element, &extents, &rank));
        found.extents.assign(extents, extents + rank);
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

} // namespace ort
