/*
 * peers.c - invar bench with peers: the speed of ops beside that of others, in one run.
 *
 * On a CPU, the peers of products are those of OpenBLAS on the same matrices, of hashes XXH3 in one
 * call, and of sm90 our own ieee chain. On a GPU, --peer names a shared object (peers.h). They run
 * in turn with the op, and a part of every result is compared with the CPU's (check.c). With
 * --model, complete models are compared (peers_model.c). The exit code is 1 if bits differ.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/json/result.h"
#include "base/process/argv0.h"
#include "kernels-deterministic/math/elementary.h"
#include "tests/bench/check.h"
#include "tests/bench/peers_model.h"

typedef void (*sgemm_fn)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                         const float *a, int lda, const float *b, int ldb, float beta, float *c,
                         int ldc);

enum { MAX_FAMILIES = 64 };

/* Ratios of the rows of an op to one peer. */
typedef struct ratio_family {
    invar_op op;
    invar_dtype type;
    const char *peer;
    double least;
    float logs; /* sum of the logarithms */
    int rows;
} ratio_family;

static struct {
    sgemm_fn sgemm; /* NULL if OpenBLAS was not found */
    void (*set_threads)(int threads);
    bool sought;
    const invar_gpu_compare_peer *gpu_peers;
    double ieee[2]; /* seconds of the last ieee row, with 1 thread and with more */
    ratio_family families[MAX_FAMILIES];
    int n_families;
    invar_bench_comparison now, all; /* elements of the current case, and of all cases */
} peers;

/* ---- peers of a CPU -------------------------------------------------------------------------- */

/* Converts a data pointer to a function pointer, as POSIX guarantees for dlsym. */
static void find_symbol(void *out, void *library, const char *name)
{
    void *symbol = dlsym(library, name);

    memcpy(out, &symbol, sizeof symbol);
}

static bool find_blas(void)
{
    void *library = peers.sought ? NULL : dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);

    if (library) {
        find_symbol(&peers.sgemm, library, "cblas_sgemm");
        find_symbol(&peers.set_threads, library, "openblas_set_num_threads");
    }
    if (!peers.sought && !peers.sgemm)
        fprintf(stderr, "invar: bench: no OpenBLAS here, so no peer for f32 products "
                        "(apt-get install libopenblas0-pthread)\n");
    peers.sought = true;
    return peers.sgemm && peers.set_threads;
}

/* Computes c = a b, or c += a b, with optional transposition of a and b. */
static void multiply(const invar_tensor *c, const invar_tensor *a, bool transpose_a,
                     const invar_tensor *b, bool transpose_b, bool accumulate)
{
    enum { ROW_MAJOR = 101, AS_IS = 111, TRANSPOSED = 112 };

    peers.sgemm(ROW_MAJOR, transpose_a ? TRANSPOSED : AS_IS, transpose_b ? TRANSPOSED : AS_IS,
                (int)c->shape[0], (int)c->shape[1], (int)a->shape[transpose_a ? 0 : 1], 1.0f,
                a->data, (int)a->row_stride, b->data, (int)b->row_stride, accumulate ? 1.0f : 0.0f,
                c->data, (int)c->row_stride);
}

static invar_status sgemm_fwd(const invar_device *dev, const void *args, void *workspace)
{
    const invar_linear_fwd_args *p = args;

    (void)dev, (void)workspace;
    multiply(&p->y, &p->x, false, &p->w, true, false);
    return INVAR_OK;
}

static invar_status sgemm_dx(const invar_device *dev, const void *args, void *workspace)
{
    const invar_linear_dx_args *p = args;

    (void)dev, (void)workspace;
    multiply(&p->dx, &p->parts[0].dy, false, &p->parts[0].w, false, false);
    return INVAR_OK;
}

static invar_status sgemm_dw(const invar_device *dev, const void *args, void *workspace)
{
    const invar_linear_dw_args *p = args;

    (void)dev, (void)workspace;
    multiply(&p->dw, &p->dy, true, &p->x, false, true);
    return INVAR_OK;
}

/* Returns the rows that belong to an expert: those of its tokens, or of its weights. */
static invar_tensor routed(const invar_tensor *t, const invar_row_offsets *experts, int64_t e)
{
    return invar_tensor_rows(t, experts->offsets[e], experts->offsets[e + 1] - experts->offsets[e]);
}

static invar_tensor weights(const invar_tensor *t, const invar_row_offsets *experts, int64_t e)
{
    int64_t each = t->shape[0] / experts->count;

    return invar_tensor_rows(t, e * each, each);
}

static invar_status sgemm_moe_fwd(const invar_device *dev, const void *args, void *workspace)
{
    const invar_moe_linear_fwd_args *p = args;

    (void)dev, (void)workspace;
    for (int64_t e = 0; e < p->experts.count; e++) {
        invar_tensor y = routed(&p->y, &p->experts, e), x = routed(&p->x, &p->experts, e);
        invar_tensor w = weights(&p->w, &p->experts, e);
        multiply(&y, &x, false, &w, true, false);
    }
    return INVAR_OK;
}

static invar_status sgemm_moe_dx(const invar_device *dev, const void *args, void *workspace)
{
    const invar_moe_linear_dx_args *p = args;

    (void)dev, (void)workspace;
    for (int64_t e = 0; e < p->experts.count; e++) {
        invar_tensor dx = routed(&p->dx, &p->experts, e);
        invar_tensor dy = routed(&p->parts[0].dy, &p->experts, e);
        invar_tensor w = weights(&p->parts[0].w, &p->experts, e);
        multiply(&dx, &dy, false, &w, false, false);
    }
    return INVAR_OK;
}

static invar_status sgemm_moe_dw(const invar_device *dev, const void *args, void *workspace)
{
    const invar_moe_linear_dw_args *p = args;

    (void)dev, (void)workspace;
    for (int64_t e = 0; e < p->experts.count; e++) {
        invar_tensor dw = weights(&p->dw, &p->experts, e);
        invar_tensor dy = routed(&p->dy, &p->experts, e), x = routed(&p->x, &p->experts, e);
        multiply(&dw, &dy, true, &x, false, true);
    }
    return INVAR_OK;
}

static void hash_once(const invar_tensor *x)
{
    invar_digest digest;

    invar_hash_bytes(&digest, x->data,
                     (size_t)(x->shape[0] * x->row_stride * invar_dtype_bits(x->dtype)) / 8);
}

static invar_status xxh3_tree(const invar_device *dev, const void *args, void *workspace)
{
    (void)dev, (void)workspace;
    hash_once(((const invar_hash_tree_args *)args)->x);
    return INVAR_OK;
}

static invar_status xxh3_leaves(const invar_device *dev, const void *args, void *workspace)
{
    (void)dev, (void)workspace;
    hash_once(&((const invar_hash_leaves_args *)args)->x);
    return INVAR_OK;
}

static const invar_gpu_compare_peer cpu_peers[] = {
    {"OpenBLAS sgemm", INVAR_OP_LINEAR_FWD, "f32", sgemm_fwd},
    {"OpenBLAS sgemm", INVAR_OP_LINEAR_DX, "f32", sgemm_dx},
    {"OpenBLAS sgemm", INVAR_OP_LINEAR_DW, "f32", sgemm_dw},
    {"OpenBLAS sgemm", INVAR_OP_MOE_LINEAR_FWD, "f32", sgemm_moe_fwd},
    {"OpenBLAS sgemm", INVAR_OP_MOE_LINEAR_DX, "f32", sgemm_moe_dx},
    {"OpenBLAS sgemm", INVAR_OP_MOE_LINEAR_DW, "f32", sgemm_moe_dw},
    {"XXH3, one call", INVAR_OP_HASH_TREE, "bf16", xxh3_tree},
    {"XXH3, one call", INVAR_OP_HASH_LEAVES, "bf16", xxh3_leaves},
    {0},
};

/* ---- peers of a case ------------------------------------------------------------------------- */

/*
 * Runs the peer's forward for each set of operands of a backward of attention, which needs what the
 * forward keeps. The forward writes to dq, which the backward replaces.
 */
static bool run_forward(const invar_bench_case *c, const invar_device *dev)
{
    const invar_gpu_compare_peer *p = peers.gpu_peers;

    while (p->name && p->op != INVAR_OP_ATTENTION_FWD)
        p++;
    for (int i = 0; i < c->sets && p->name; i++) {
        const invar_attention_bwd_args *a = c->args[i];
        const invar_attention_fwd_args fwd = {.o = a->dq,
                                              .lse2 = a->lse2,
                                              .q = a->q,
                                              .k = a->k,
                                              .v = a->v,
                                              .samples = a->samples,
                                              .shape = a->shape};
        if (p->run(dev, &fwd, NULL) != INVAR_OK)
            return false;
    }
    return p->name != NULL;
}

static int find_peers(invar_bench_runner *out, const invar_bench_case *c, const invar_device *dev)
{
    bool local = invar_device_is_local(dev);
    const char *type = invar_dtype_name(c->type);
    int count = 0;

    if (local && c->op == INVAR_OP_ATTENTION_BWD && !run_forward(c, dev)) {
        fprintf(stderr, "invar: bench: attention.bwd has no peer, because its forward failed\n");
        return 0;
    }

    for (const invar_gpu_compare_peer *p = local ? peers.gpu_peers : cpu_peers; p->name; p++)
        if (p->op == c->op && strcmp(p->type, type) == 0 && count < INVAR_BENCH_RUNNERS - 2 &&
            (local || c->unit != INVAR_BENCH_UNIT_MAC || find_blas()))
            out[count++] = (invar_bench_runner){
                .name = p->name, .run = p->run, .args = c->args, .sets = c->sets};
    if (peers.set_threads)
        peers.set_threads(invar_pool_threads(dev->pool));
    return count;
}

static invar_status check_case(const invar_bench_case *c, const invar_device *dev)
{
    INVAR_TRY(invar_bench_check(&peers.now, c, dev));
    peers.all.compared += peers.now.compared;
    peers.all.different += peers.now.different;
    return INVAR_OK;
}

static void add_ratio(const invar_bench_case *c, const char *peer, double ratio)
{
    ratio_family *f = peers.families, *end = f + peers.n_families;

    while (f < end && !(f->op == c->op && f->type == c->type && strcmp(f->peer, peer) == 0))
        f++;
    if (f == end) {
        INVAR_CHECK(peers.n_families < MAX_FAMILIES);
        peers.n_families++;
        *f = (ratio_family){.op = c->op, .type = c->type, .peer = peer, .least = ratio};
    }
    f->logs += invar_log((float)ratio);
    f->least = ratio < f->least ? ratio : f->least;
    f->rows++;
}

static void print_peers(const invar_bench_case *c, double seconds, const invar_bench_runner *found,
                        int count, const invar_device *dev, json_t *row)
{
    enum { LEFT = 84 }; // columns before those of the peer
    json_t *list = json_array();
    invar_bench_runner all[INVAR_BENCH_RUNNERS] = {{0}};
    bool ieee = dev->numerics == INVAR_NUMERICS_IEEE, local = invar_device_is_local(dev);
    double *alone = &peers.ieee[invar_pool_threads(dev->pool) > 1];

    if (row && local) {
        (void)json_object_set_new(row, "compared", json_integer(peers.now.compared));
        (void)json_object_set_new(row, "different", json_integer(peers.now.different));
    } else if (local) {
        printf(" %-9s", peers.now.different ? "DIFFERENT" : peers.now.compared ? "equal" : "");
    }
    for (int i = 0; i < count; i++)
        all[i] = found[i];
    if (ieee)
        *alone = seconds;
    else if (!local)
        all[count++] = (invar_bench_runner){.name = "our ieee chain", .seconds = *alone};
    for (int i = 0; i < count; i++) {
        const char *name = strcmp(all[i].name, "copy") == 0 && !local ? "memcpy" : all[i].name;
        double ratio = all[i].seconds / seconds;
        (void)json_array_append_new(list, INVAR_RESULT("{name text, seconds real, ratio real}",
                                                       name, all[i].seconds, ratio));
        if (!row)
            printf("%s%*s %10.1f %7.3f  %s", i > 0 ? "\n" : "", i > 0 ? LEFT + 10 * local : 0, "",
                   1e6 * all[i].seconds, ratio, name);
        if (local)
            add_ratio(c, name, ratio);
    }
    if (row)
        (void)json_object_set(row, "peers", list);
    json_decref(list);
}

static void print_means(void)
{
    printf("ratio: the peer's time over ours; above 1 we are faster\n");
    for (int i = 0; i < peers.n_families; i++) {
        const ratio_family *f = &peers.families[i];
        if (f->rows > 1)
            printf("%s %s beside %s: geometric mean of %d %.3f, least %.3f\n", invar_op_name(f->op),
                   invar_dtype_name(f->type), f->peer, f->rows,
                   (double)invar_exp(f->logs / (float)f->rows), f->least);
    }
}

/* ---- the program ----------------------------------------------------------------------------- */

static invar_status find_gpu_peers(const char *path)
{
    static const invar_gpu_compare_peer none[] = {{0}};
    invar_gpu_compare_peers_fn list = NULL;
    const invar_backend *own;
    void *library;

    peers.gpu_peers = none;
    if (!path[0])
        return INVAR_OK;
    INVAR_TRY(invar_backend_find(&own, INVAR_DEVICE_CUDA));
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--peer: %.1000s", dlerror());
    find_symbol(&list, library, "invar_race_peers");
    peers.gpu_peers = list ? list(own) : NULL;
    if (!peers.gpu_peers)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--peer %.1000s: it has no ops for this device",
                          path);
    return INVAR_OK;
}

static invar_status compare_ops(const invar_bench_options *o, const char *path)
{
    invar_status status;

    INVAR_TRY(invar_bench_check_selection(o->only));
    if (o->device == INVAR_DEVICE_CPU && path[0])
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--peer: ops of the CPU have their own peers");
    INVAR_TRY(find_gpu_peers(path));
    status = invar_bench_run(o);
    if (!o->json && status == INVAR_OK)
        print_means();
    if (status == INVAR_OK && peers.all.different > 0)
        return INVAR_FAIL(INVAR_E_MISMATCH, 0,
                          "%" PRId64 " of %" PRId64
                          " elements differ from the CPU: see invar doctor, and invar selfcheck "
                          "--device cuda",
                          peers.all.different, peers.all.compared);
    return status;
}

int main(int argc, char **argv)
{
    static const invar_bench_peers hooks = {check_case, find_peers, print_peers};
    invar_bench_options ops = {.only = "", .peers = &hooks};
    invar_bench_model_options model = INVAR_BENCH_MODEL_DEFAULTS;
    invar_option_choice device = {&invar_device_kind_choices, INVAR_DEVICE_CPU};
    const char *peer = "";
    int64_t burst = 0;
    bool json = false;
    const invar_option options[] = {
        {"device", INVAR_OPTION_WORD, &device, "DEVICE", "where to run", 0, 0},
        {"op", INVAR_OPTION_TEXT, &ops.only, "NAME", "only ops with NAME in their name", 0, 0},
        INVAR_OPTION_THREADS(&model.threads, "threads"),
        {"json", INVAR_OPTION_FLAG, &json, NULL, "print JSON", 0, 0},
        {"peer", INVAR_OPTION_TEXT, &peer, "FILE.so", "ops to compare with", 0, 0},
        {"burst", INVAR_OPTION_INT, &burst, "MS", "milliseconds of a turn (20; 10)", 1, 1000},
        INVAR_BENCH_MODEL_OPTIONS(model),
        {0}};
    invar_status status;

    invar_argv0_set(argv[0]);
    model.threads = invar_default_threads();
    status = invar_options_parse(options, argc - 1, argv + 1);
    ops.device = model.device = (invar_device_kind)device.value;
    ops.threads = (int)model.threads;
    ops.json = model.json = json;
    ops.burst = 1e-3 * (double)burst;
    if (status == INVAR_OK)
        status = model.model.value >= 0 ? invar_bench_compare_model(&model, peer)
                                        : compare_ops(&ops, peer);
    return invar_exit(status);
}
