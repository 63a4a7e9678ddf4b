// The functions of ggml that are called, with names and layouts that all supported versions share. Enums are plain
// integers, because their numbers, except ggml_type's, change between versions.

typedef struct ggml_context ggml_context;
typedef struct ggml_cgraph ggml_cgraph;
typedef struct ggml_gallocr * ggml_gallocr_t;
typedef struct ggml_backend_buffer_type * ggml_backend_buffer_type_t;
typedef struct ggml_backend_buffer * ggml_backend_buffer_t;
typedef struct ggml_backend * ggml_backend_t;
typedef struct ggml_backend_reg * ggml_backend_reg_t;
typedef struct ggml_backend_device * ggml_backend_dev_t;
typedef struct ggml_backend_sched * ggml_backend_sched_t;

typedef struct ggml_tensor {
    int type;
    ggml_backend_buffer_t buffer;
    int64_t ne[4];
    size_t nb[4];
    int op;
    int32_t op_params[16];
    int32_t flags;
    struct ggml_tensor * src[10];
    struct ggml_tensor * view_src;
    size_t view_offs;
    void * data;
    char name[64];
    void * extra;
    char padding[8];
} ggml_tensor;

typedef struct { size_t mem_size; void * mem_buffer; bool no_alloc; } ggml_init_params;
typedef struct {
    const char * type_name;
    int64_t blck_size;
    int64_t blck_size_interleave;
    size_t type_size;
    bool is_quantized;
    void * to_float;
    void * from_float_ref;
} ggml_type_traits;
typedef void (* ggml_vec_dot_t)(int n, float * s, size_t bs, const void * x, size_t bx, const void * y, size_t by,
    int nrc);
typedef struct { void * from_float; ggml_vec_dot_t vec_dot; int vec_dot_type; int64_t nrows; } ggml_type_traits_cpu;
typedef struct {
    size_t work_size;
    uint8_t * work_data;
    int n_threads;
    void * threadpool;
    void * abort_callback;
    void * abort_callback_data;
    bool use_ref;
} ggml_cplan;
typedef struct { const char * name; const char * value; } ggml_backend_feature;
typedef struct {
    const char * name;
    const char * description;
    size_t memory_free;
    size_t memory_total;
    int type;
    const char * device_id;
    char caps[64];
} ggml_backend_dev_props; // the capabilities are fewer, and differ between versions
typedef struct { const char * file; void * file_begin; const char * symbol; void * symbol_begin; } code_place;

// libc
size_t strlen(const char * text);
int madvise(void * addr, size_t length, int advice);
int dladdr(const void * address, code_place *);

// the library
const char * ggml_version(void);
size_t ggml_tensor_overhead(void);
size_t ggml_graph_overhead_custom(size_t size, bool grads);
const char * ggml_op_name(int op);
const char * ggml_op_desc(const ggml_tensor * tensor);
void ggml_log_set(void (* callback)(int level, const char * text, void * user_data), void * user_data);
ggml_context * ggml_init(ggml_init_params params);
void ggml_free(ggml_context * ctx);
const ggml_type_traits * ggml_get_type_traits(int type);
const ggml_type_traits_cpu * ggml_get_type_traits_cpu(int type);
size_t ggml_row_size(int type, int64_t ne);
size_t ggml_nbytes(const ggml_tensor * tensor);
bool ggml_is_contiguous(const ggml_tensor * tensor);

// tensors
ggml_tensor * ggml_new_tensor_4d(ggml_context *, int type, int64_t, int64_t, int64_t, int64_t);
ggml_tensor * ggml_view_1d(ggml_context *, ggml_tensor *, int64_t ne0, size_t offset);
ggml_tensor * ggml_reshape_4d(ggml_context *, ggml_tensor *, int64_t, int64_t, int64_t, int64_t);
ggml_tensor * ggml_permute(ggml_context *, ggml_tensor *, int, int, int, int);
ggml_tensor * ggml_set_name(ggml_tensor *, const char * name);
void ggml_set_output(ggml_tensor *);

// ops of a tensor, of two, and of a tensor and a number
typedef ggml_tensor * unary_op(ggml_context *, ggml_tensor *);
unary_op ggml_neg, ggml_sqr, ggml_sqrt, ggml_exp, ggml_sin, ggml_cos, ggml_tanh, ggml_sigmoid, ggml_relu,
    ggml_silu, ggml_gelu, ggml_gelu_erf, ggml_gelu_quick, ggml_softplus, ggml_step, ggml_trunc,
    ggml_soft_max, ggml_sum_rows, ggml_mean, ggml_cumsum, ggml_cont, ggml_diag;
typedef ggml_tensor * binary_op(ggml_context *, ggml_tensor *, ggml_tensor *);
binary_op ggml_add, ggml_sub, ggml_mul, ggml_div, ggml_mul_mat, ggml_cpy, ggml_get_rows, ggml_ssm_conv;
typedef ggml_tensor * number_op(ggml_context *, ggml_tensor *, float);
number_op ggml_scale, ggml_norm, ggml_rms_norm, ggml_l2_norm;

// elementwise
ggml_tensor * ggml_clamp(ggml_context *, ggml_tensor *, float min, float max);
ggml_tensor * ggml_glu_split(ggml_context *, ggml_tensor *, ggml_tensor *, int op);
ggml_tensor * ggml_swiglu_oai(ggml_context *, ggml_tensor *, ggml_tensor *, float alpha, float limit);

// matrix, norm, reduce, order
ggml_tensor * ggml_mul_mat_id(ggml_context *, ggml_tensor *, ggml_tensor *, ggml_tensor * ids);
void ggml_mul_mat_set_prec(ggml_tensor *, int prec);
ggml_tensor * ggml_add_id(ggml_context *, ggml_tensor *, ggml_tensor *, ggml_tensor * ids);
ggml_tensor * ggml_soft_max_ext(ggml_context *, ggml_tensor *, ggml_tensor * mask, float scale, float max_bias);
void ggml_soft_max_add_sinks(ggml_tensor *, ggml_tensor * sinks);
ggml_tensor * ggml_argsort(ggml_context *, ggml_tensor *, int order);

// shape, write, index
ggml_tensor * ggml_cast(ggml_context *, ggml_tensor *, int type);
ggml_tensor * ggml_concat(ggml_context *, ggml_tensor *, ggml_tensor *, int dim);
ggml_tensor * ggml_repeat_4d(ggml_context *, ggml_tensor *, int64_t, int64_t, int64_t, int64_t);
ggml_tensor * ggml_custom_4d(ggml_context *, int type, int64_t, int64_t, int64_t, int64_t, ggml_tensor ** args,
    int n_args, void (* fun)(ggml_tensor *, int, int, void *), int n_tasks, void * userdata);
ggml_tensor * ggml_custom_inplace(ggml_context *, ggml_tensor * a, ggml_tensor ** args, int n_args,
    void (* fun)(ggml_tensor *, int, int, void *), int n_tasks, void * userdata);
ggml_tensor * ggml_pad_ext(ggml_context *, ggml_tensor *, int, int, int, int, int, int, int, int);
ggml_tensor * ggml_set_rows(ggml_context *, ggml_tensor *, ggml_tensor * rows, ggml_tensor * ids);

// spatial
ggml_tensor * ggml_im2col(ggml_context *, ggml_tensor *, ggml_tensor *, int, int, int, int, int, int, bool, int type);
ggml_tensor * ggml_im2col_3d(ggml_context *, ggml_tensor *, ggml_tensor *, int64_t channels, int, int, int, int, int,
    int, int, int, int, int type);
ggml_tensor * ggml_conv_2d(ggml_context *, ggml_tensor *, ggml_tensor *, int, int, int, int, int, int);
ggml_tensor * ggml_pool_2d(ggml_context *, ggml_tensor *, int op, int, int, int, int, float, float);
ggml_tensor * ggml_interpolate(ggml_context *, ggml_tensor *, int64_t, int64_t, int64_t, int64_t, uint32_t mode);

// sequence, linear algebra, attention
ggml_tensor * ggml_rope_ext(ggml_context *, ggml_tensor *, ggml_tensor * positions, ggml_tensor * factors, int dims,
    int mode, int n_ctx_orig, float base, float scale, float ext, float attn, float fast, float slow);
ggml_tensor * ggml_rope_multi(ggml_context *, ggml_tensor *, ggml_tensor * positions, ggml_tensor * factors, int dims,
    int sections[4], int mode, int n_ctx_orig, float base, float scale, float ext, float attn, float fast, float slow);
// The last argument came with 0.20, that of ggml_gated_delta_net with 0.15: older versions do not look at it.
ggml_tensor * ggml_ssm_scan(ggml_context *, ggml_tensor *, ggml_tensor *, ggml_tensor *, ggml_tensor *, ggml_tensor *,
    ggml_tensor *, ggml_tensor * ids, int64_t kept_states);
ggml_tensor * ggml_rwkv_wkv7(ggml_context *, ggml_tensor * q, ggml_tensor * factor, ggml_tensor * k, ggml_tensor * v,
    ggml_tensor * read, ggml_tensor * written, ggml_tensor * state);
ggml_tensor * ggml_gated_delta_net(ggml_context *, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
    ggml_tensor * decay, ggml_tensor * share, ggml_tensor * state, int64_t kept_states);
ggml_tensor * ggml_tri(ggml_context *, ggml_tensor *, int kind);
ggml_tensor * ggml_solve_tri(ggml_context *, ggml_tensor *, ggml_tensor *, bool left, bool lower, bool unit);
ggml_tensor * ggml_flash_attn_ext(ggml_context *, ggml_tensor *, ggml_tensor *, ggml_tensor *, ggml_tensor * mask,
    float scale, float max_bias, float softcap);
void ggml_flash_attn_ext_add_sinks(ggml_tensor *, ggml_tensor * sinks);

// graphs and their memory
ggml_cgraph * ggml_new_graph_custom(ggml_context *, size_t size, bool grads);
void ggml_build_forward_expand(ggml_cgraph *, ggml_tensor *);
int ggml_graph_n_nodes(ggml_cgraph *);
ggml_tensor * ggml_graph_node(ggml_cgraph *, int i);
ggml_cplan ggml_graph_plan(const ggml_cgraph *, int n_threads, void * threadpool);
int ggml_graph_compute(ggml_cgraph *, ggml_cplan *);
ggml_gallocr_t ggml_gallocr_new(ggml_backend_buffer_type_t);
void ggml_gallocr_free(ggml_gallocr_t);
bool ggml_gallocr_reserve(ggml_gallocr_t, ggml_cgraph *);
void ggml_gallocr_reserve_n_size(ggml_gallocr_t, ggml_cgraph *, const int * nodes, const int * leafs, size_t * sizes);
bool ggml_gallocr_alloc_graph(ggml_gallocr_t, ggml_cgraph *);
size_t ggml_gallocr_get_buffer_size(ggml_gallocr_t, int buffer_id);

// buffers and devices
ggml_backend_buffer_t ggml_backend_buft_alloc_buffer(ggml_backend_buffer_type_t, size_t size);
size_t ggml_backend_buft_get_alignment(ggml_backend_buffer_type_t);
size_t ggml_backend_buft_get_alloc_size(ggml_backend_buffer_type_t, const ggml_tensor *);
int ggml_backend_buffer_init_tensor(ggml_backend_buffer_t, ggml_tensor *);
const char * ggml_backend_buft_name(ggml_backend_buffer_type_t);
void ggml_backend_buffer_free(ggml_backend_buffer_t);
void * ggml_backend_buffer_get_base(ggml_backend_buffer_t);
void ggml_backend_buffer_clear(ggml_backend_buffer_t, uint8_t value);
ggml_backend_buffer_t ggml_backend_cpu_buffer_from_ptr(void * ptr, size_t size);
ggml_backend_buffer_type_t ggml_backend_cpu_buffer_type(void);
int ggml_backend_tensor_alloc(ggml_backend_buffer_t, ggml_tensor *, void * addr);
void ggml_backend_tensor_set(ggml_tensor *, const void * data, size_t offset, size_t size);
void ggml_backend_tensor_get(const ggml_tensor *, void * data, size_t offset, size_t size);
size_t ggml_backend_dev_count(void);
ggml_backend_dev_t ggml_backend_dev_get(size_t index);
const char * ggml_backend_dev_description(ggml_backend_dev_t);
int ggml_backend_dev_type(ggml_backend_dev_t);
void ggml_backend_dev_memory(ggml_backend_dev_t, size_t * free, size_t * total);
void ggml_backend_dev_get_props(ggml_backend_dev_t, ggml_backend_dev_props *);
ggml_backend_reg_t ggml_backend_dev_backend_reg(ggml_backend_dev_t);
bool ggml_backend_dev_supports_op(ggml_backend_dev_t, const ggml_tensor *);
void * ggml_backend_reg_get_proc_address(ggml_backend_reg_t, const char * name);
const char * ggml_backend_reg_name(ggml_backend_reg_t);
void ggml_backend_load_all_from_path(const char * folder);
ggml_backend_reg_t ggml_backend_load(const char * path);
void ggml_backend_unload(ggml_backend_reg_t);
void ggml_backend_buffer_set_usage(ggml_backend_buffer_t, int usage);
ggml_backend_buffer_type_t ggml_backend_dev_buffer_type(ggml_backend_dev_t);
ggml_backend_t ggml_backend_dev_init(ggml_backend_dev_t, const char * params);
ggml_backend_reg_t ggml_backend_reg_by_name(const char * name);
size_t ggml_backend_reg_count(void);
ggml_backend_reg_t ggml_backend_reg_get(size_t index);
size_t ggml_backend_reg_dev_count(ggml_backend_reg_t);
ggml_backend_dev_t ggml_backend_reg_dev_get(ggml_backend_reg_t, size_t index);
void ggml_backend_free(ggml_backend_t);

// one graph over several devices
ggml_backend_sched_t ggml_backend_sched_new(ggml_backend_t *, ggml_backend_buffer_type_t *, int count, size_t graph_size,
    bool parallel, bool op_offload);
void ggml_backend_sched_free(ggml_backend_sched_t);
void ggml_backend_sched_reset(ggml_backend_sched_t);
void ggml_backend_sched_reserve_size(ggml_backend_sched_t, ggml_cgraph *, size_t * sizes);
bool ggml_backend_sched_reserve(ggml_backend_sched_t, ggml_cgraph *);
bool ggml_backend_sched_alloc_graph(ggml_backend_sched_t, ggml_cgraph *);
int ggml_backend_sched_graph_compute(ggml_backend_sched_t, ggml_cgraph *);
void ggml_backend_sched_set_eval_callback(ggml_backend_sched_t, bool (*)(ggml_tensor *, bool ask, void *), void *);
void ggml_backend_sched_set_tensor_backend(ggml_backend_sched_t, ggml_tensor *, ggml_backend_t);
size_t ggml_backend_sched_get_buffer_size(ggml_backend_sched_t, ggml_backend_t);
int ggml_backend_sched_get_n_splits(ggml_backend_sched_t);
