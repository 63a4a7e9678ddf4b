// The part of ONNX Runtime's C interface that custom ops need, by number.
//
// ONNX Runtime never moves the members of its table, it only adds some at the end; so the numbers hold for all later
// versions. Functions return null, or a status that describes an error.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ort {

struct Status;
struct Context; // of a run of a kernel
struct Info;    // of a kernel: its attributes
struct Value;
struct Shape;
struct Options;
struct Domain;
struct Op;

constexpr uint32_t VERSION = 17; // the first with a loop over its threads
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
static inline Status *element_of(const Shape *shape, Element *element) { return call<60>(shape, element); }
static inline Status *rank_of(const Shape *shape, size_t *rank) { return call<61>(shape, rank); }
static inline Status *extents_of(const Shape *shape, int64_t *extents, size_t rank) { return call<62>(shape, extents, rank); }
static inline Status *shape_of(const Value *value, Shape **shape) { return call<65>(value, shape); }
static inline Status *attribute(const Info *info, const char *name, float *found) { return call<85>(info, name, found); }
static inline Status *attribute(const Info *info, const char *name, int64_t *found) { return call<86>(info, name, found); }
static inline Status *input(const Context *context, size_t n, const Value **found) { return call<90>(context, n, found); }
static inline Status *output(Context *context, size_t n, const int64_t *extents, size_t rank, Value **made) {
    return call<91>(context, n, extents, rank, made);
}
static inline void release(Status *status) { ((void (*)(Status *))table[93])(status); }
static inline void release(Shape *shape) { ((void (*)(Shape *))table[99])(shape); }
// Calls a function for all numbers below `count`, on the threads of the session.
static inline Status *each(const Context *context, size_t count, void (*function)(void *, size_t), void *data) {
    return call<274>(context, function, count, (size_t)0, data);
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

} // namespace ort
