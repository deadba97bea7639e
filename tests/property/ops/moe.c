/*
 * moe.c - free choices change no bit of a mixture-of-experts layer, forward and backward.
 *
 * The layer consists of router, plan, gather, gate and up, SwiGLU, down and combine, with all
 * their backwards. A token in a batch must have the results that it has alone, and a gradient must
 * be the sum over its units in order, for every split of tokens over experts, order, micro-batch,
 * thread count, CPU path and replayed routing. Gradients are also compared with finite differences
 * of a second implementation in double. Controls: other units change every gradient and no result
 * of a token; ops whose rows depend on other rows (row_leak.h), for all or for some devices, change
 * the compared results; and so does the replay of another routing.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/device/copying_backend.h"
#include "tests/device/row_leak.h"
#include "tests/formats.h"

/* ---- devices --------------------------------------------------------------------------------- */

#define SCRATCH_BYTES ((size_t)1 << 25) // enough for a product on 8 threads with 4 shards

/*
 * Opens a device with plain scratch: the debug arena would fill megabytes for each of about ten
 * thousand ops.
 */
static void device_init(invar_device *dev, invar_numerics numerics, invar_cpu_path path,
                        int threads)
{
    *dev = (invar_device){
        .backend = invar_test_heap_backend(), .numerics = numerics, .cpu_path = path};
    assert_non_null(dev->backend);
    assert_ok(invar_pool_new(&dev->pool, threads));
    assert_ok(invar_arena_new(&dev->scratch, "test scratch"));
    assert_ok(invar_arena_plan_scratch(dev->scratch, SCRATCH_BYTES));
    assert_ok(invar_arena_reserve(dev->scratch));
}

static void device_release(invar_device *dev)
{
    invar_arena_free(dev->scratch);
    invar_pool_free(dev->pool);
}

/* ---- the layer ------------------------------------------------------------------------------- */

typedef struct layer {
    const invar_test_format *format;
    int64_t width;  /* D */
    int64_t hidden; /* F */
    int64_t experts;
    int64_t slots;
    int32_t k_shards;
    int64_t k_atom;
    invar_moe_router router;
    invar_tensor router_weight; /* (E, D) storage */
    invar_tensor gate;          /* (E*F, D), weight format */
    invar_tensor up;            /* (E*F, D), weight format */
    invar_tensor down;          /* (E*D, F), weight format */
} layer;

typedef struct batch {
    invar_tensor x;      /* (T, D) storage */
    invar_tensor dout;   /* (T, D) storage */
    invar_tensor shared; /* (T, D) storage */
    invar_tensor replay; /* (T, S) i32, optional: expert ids to use instead of the router's
                            choice */
} batch;

/*
 * Results of a run: first those of single tokens, then the gradients that accumulate over tokens.
 */
enum {
    OUT,        /* (T, D) storage */
    DX_EXPERTS, /* (T, D) storage */
    DX_ROUTER,  /* (T, D) storage */
    DLOGITS,    /* (T, E) storage */
    WEIGHTS,    /* (T, S) f32 */
    IDS,        /* (T, S) i32 */
    TOKEN_RESULTS,
    DROUTER = TOKEN_RESULTS, /* (E, D) f32 */
    DGATE,                   /* (E*F, D) f32 */
    DUP,                     /* (E*F, D) f32 */
    DDOWN,                   /* (E*D, F) f32 */
    RESULTS
};

static const char *const result_names[RESULTS] = {"out",     "dx_experts", "dx_router", "dlogits",
                                                  "weights", "ids",        "drouter",   "dgate",
                                                  "dup",     "ddown"};

typedef struct results {
    invar_tensor at[RESULTS];
} results;

static invar_tensor make_matrix(invar_dtype dtype, int64_t rows, int64_t cols)
{
    return invar_test_tensor(invar_tensor_2d(NULL, dtype, rows, cols));
}

static invar_tensor make_weight(const invar_device *dev, const invar_test_format *f, int64_t rows,
                                int64_t cols, uint64_t seed)
{
    invar_tensor plain = make_matrix(f->storage, rows, cols), w;

    invar_test_fill_normal(&plain, seed, 1.0f / sqrtf((float)cols));
    w = invar_test_quantized(dev, &plain, f->w, true);
    invar_test_free(&plain);
    return w;
}

/* Makes the smallest layer that the format and the number of shards allow. */
static layer layer_new(const invar_test_format *f, int32_t k_shards, int64_t experts, int64_t slots)
{
    int64_t block = f->w == INVAR_DTYPE_FP8 ? 128 : f->w == f->storage ? 16 : 32;
    layer l = {.format = f,
               .width = block * k_shards,
               .hidden = block * k_shards,
               .experts = experts,
               .slots = slots,
               .k_shards = k_shards,
               .k_atom = block,
               .router = {INVAR_MOE_SOFTMAX, 1, 1, 1, 1, 1e-6f, 1.5f}};
    invar_device dev;

    device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    l.router_weight = make_matrix(f->storage, experts, l.width);
    invar_test_fill_normal(&l.router_weight, 1, 0.5f);
    l.gate = make_weight(&dev, f, experts * l.hidden, l.width, 2);
    l.up = make_weight(&dev, f, experts * l.hidden, l.width, 3);
    l.down = make_weight(&dev, f, experts * l.width, l.hidden, 4);
    device_release(&dev);
    return l;
}

static void layer_free(layer *l)
{
    invar_test_free(&l->router_weight, &l->gate, &l->up, &l->down);
}

static results results_new(const layer *l, int64_t tokens)
{
    invar_dtype storage = l->format->storage, f32 = INVAR_DTYPE_F32;
    results r = {.at = {
                     [OUT] = make_matrix(storage, tokens, l->width),
                     [DX_EXPERTS] = make_matrix(storage, tokens, l->width),
                     [DX_ROUTER] = make_matrix(storage, tokens, l->width),
                     [DLOGITS] = make_matrix(storage, tokens, l->experts),
                     [WEIGHTS] = make_matrix(f32, tokens, l->slots),
                     [IDS] = make_matrix(INVAR_DTYPE_I32, tokens, l->slots),
                     [DROUTER] = make_matrix(f32, l->experts, l->width),
                     [DGATE] = make_matrix(f32, l->experts * l->hidden, l->width),
                     [DUP] = make_matrix(f32, l->experts * l->hidden, l->width),
                     [DDOWN] = make_matrix(f32, l->experts * l->width, l->hidden),
                 }};

    for (int i = TOKEN_RESULTS; i < RESULTS; i++)
        invar_test_fill(&r.at[i], 0.0f);
    return r;
}

static void results_free(results *r)
{
    for (int i = 0; i < RESULTS; i++)
        invar_test_free(&r->at[i]);
}

/*
 * Compares the first `count` results. If `changed` is NULL, asserts that they are equal; otherwise
 * adds a bit to *changed for each one that differs.
 */
static void compare_results(const results *got, const results *expected, int count,
                            const char *what, unsigned *changed)
{
    char text[64];

    for (int i = 0; i < count; i++) {
        snprintf(text, sizeof text, "%s: %s", what, result_names[i]);
        if (!changed)
            invar_assert_bits_tensor(&got->at[i], &expected->at[i], text);
        else if (invar_tensors_differ(&got->at[i], &expected->at[i]))
            *changed |= 1u << i;
    }
}

static void assert_results(const results *got, const results *expected, const char *what)
{
    compare_results(got, expected, RESULTS, what, NULL);
}

enum { ALL_TOKEN_RESULTS = (1 << TOKEN_RESULTS) - 1, ALL_RESULTS = (1 << RESULTS) - 1 };

/* Asserts that a control has changed exactly the results that it must change. */
static void assert_changed(unsigned changed, unsigned expected)
{
    for (int i = 0; i < RESULTS; i++)
        if ((changed ^ expected) >> i & 1)
            fail_msg("%s: the control %s it", result_names[i],
                     changed >> i & 1 ? "changed" : "did not change");
}

/* A view of the results of tokens [first, first + count), with the gradients of all tokens. */
static results results_rows(const results *r, int64_t first, int64_t count)
{
    results view = *r;

    for (int i = 0; i < TOKEN_RESULTS; i++)
        view.at[i] = invar_tensor_rows(&r->at[i], first, count);
    return view;
}

/* ---- one run --------------------------------------------------------------------------------- */

enum { MAX_TEMPORARIES = 24 };

typedef struct temporaries {
    invar_tensor at[MAX_TEMPORARIES];
    int count;
} temporaries;

static invar_tensor keep_temporary(temporaries *temps, invar_tensor t)
{
    assert_true(temps->count < MAX_TEMPORARIES);
    return temps->at[temps->count++] = t;
}

static invar_tensor quantize_input(temporaries *temps, const invar_device *dev, const layer *l,
                                   const invar_tensor *plain)
{
    return keep_temporary(temps, invar_test_quantized(dev, plain, l->format->x, false));
}

static void run_layer(const invar_device *dev, const layer *l, const batch *b,
                      invar_row_offsets units, const results *r)
{
    const invar_tensor *at = r->at;
    invar_dtype storage = l->format->storage, f32 = INVAR_DTYPE_F32, i32 = INVAR_DTYPE_I32;
    int64_t tokens = b->x.shape[0], rows = tokens * l->slots;
    int64_t *start = malloc((size_t)(l->experts + 1) * sizeof *start);
    const invar_row_offsets experts = {start, l->experts};
    temporaries temps = {.count = 0};
    invar_tensor logits = keep_temporary(&temps, make_matrix(f32, tokens, l->experts));
    invar_tensor scores = keep_temporary(&temps, make_matrix(f32, tokens, l->experts));
    invar_tensor dweights = keep_temporary(&temps, make_matrix(f32, tokens, l->slots));
    invar_tensor slot_row = keep_temporary(&temps, make_matrix(i32, tokens, l->slots));
    invar_tensor row_token =
        keep_temporary(&temps, invar_test_tensor(invar_tensor_1d(NULL, i32, rows)));
    invar_tensor x = keep_temporary(&temps, make_matrix(storage, rows, l->width));
    invar_tensor dx = keep_temporary(&temps, make_matrix(storage, rows, l->width));
    invar_tensor gate = keep_temporary(&temps, make_matrix(storage, rows, l->hidden));
    invar_tensor dgate = keep_temporary(&temps, make_matrix(storage, rows, l->hidden));
    invar_tensor up = keep_temporary(&temps, make_matrix(storage, rows, l->hidden));
    invar_tensor dup = keep_temporary(&temps, make_matrix(storage, rows, l->hidden));
    invar_tensor act = keep_temporary(&temps, make_matrix(storage, rows, l->hidden));
    invar_tensor dact = keep_temporary(&temps, make_matrix(storage, rows, l->hidden));
    invar_tensor y = keep_temporary(&temps, make_matrix(storage, rows, l->width));
    invar_tensor dy = keep_temporary(&temps, make_matrix(storage, rows, l->width));
    invar_tensor ids = invar_tensor_present(&b->replay) ? b->replay : at[IDS];
    invar_tensor xq, actq, dyq, dgateq, dupq;

    assert_non_null(start);
    assert_ok(invar_linear_fwd(
        dev,
        &(invar_linear_fwd_args){.y = logits, .x = b->x, .w = l->router_weight, .k_shards = 1}));
    assert_ok(invar_moe_route_fwd(dev, &(invar_moe_route_fwd_args){.ids = at[IDS],
                                                                   .weights = at[WEIGHTS],
                                                                   .scores = scores,
                                                                   .logits = logits,
                                                                   .replay = b->replay,
                                                                   .router = l->router}));
    assert_ok(
        invar_moe_plan(dev, &(invar_moe_plan_args){row_token, slot_row, start, ids, l->experts}));
    assert_ok(invar_moe_gather_fwd(dev, &(invar_moe_gather_fwd_args){x, b->x, row_token}));
    xq = quantize_input(&temps, dev, l, &x);
    assert_ok(invar_moe_linear_fwd(
        dev, &(invar_moe_linear_fwd_args){gate, xq, l->gate, experts, l->k_shards, l->k_atom}));
    assert_ok(invar_moe_linear_fwd(
        dev, &(invar_moe_linear_fwd_args){up, xq, l->up, experts, l->k_shards, l->k_atom}));
    assert_ok(invar_swiglu_fwd(dev, &(invar_swiglu_fwd_args){.y = act, .gate = gate, .up = up}));
    actq = quantize_input(&temps, dev, l, &act);
    assert_ok(invar_moe_linear_fwd(
        dev, &(invar_moe_linear_fwd_args){y, actq, l->down, experts, l->k_shards, l->k_atom}));
    assert_ok(invar_moe_combine_fwd(
        dev, &(invar_moe_combine_fwd_args){at[OUT], y, at[WEIGHTS], slot_row, b->shared}));

    assert_ok(invar_moe_combine_bwd(
        dev, &(invar_moe_combine_bwd_args){dy, dweights, b->dout, y, at[WEIGHTS], slot_row}));
    dyq = quantize_input(&temps, dev, l, &dy);
    assert_ok(invar_moe_linear_dw(
        dev, &(invar_moe_linear_dw_args){at[DDOWN], dy, act, row_token, experts, units, 0}));
    assert_ok(invar_moe_linear_dx(
        dev,
        &(invar_moe_linear_dx_args){dact, {{dyq, l->down}}, 1, experts, l->k_shards, {l->k_atom}}));
    assert_ok(invar_swiglu_bwd(
        dev,
        &(invar_swiglu_bwd_args){.dgate = dgate, .dup = dup, .dy = dact, .gate = gate, .up = up}));
    dgateq = quantize_input(&temps, dev, l, &dgate);
    dupq = quantize_input(&temps, dev, l, &dup);
    assert_ok(invar_moe_linear_dw(
        dev, &(invar_moe_linear_dw_args){at[DGATE], dgate, x, row_token, experts, units, 0}));
    assert_ok(invar_moe_linear_dw(
        dev, &(invar_moe_linear_dw_args){at[DUP], dup, x, row_token, experts, units, 0}));
    assert_ok(
        invar_moe_linear_dx(dev, &(invar_moe_linear_dx_args){dx,
                                                             {{dgateq, l->gate}, {dupq, l->up}},
                                                             2,
                                                             experts,
                                                             l->k_shards,
                                                             {l->k_atom, l->k_atom}}));
    assert_ok(
        invar_moe_gather_bwd(dev, &(invar_moe_gather_bwd_args){at[DX_EXPERTS], dx, slot_row}));
    assert_ok(invar_moe_route_bwd(
        dev, &(invar_moe_route_bwd_args){at[DLOGITS], dweights, ids, scores, l->router}));
    assert_ok(
        invar_linear_dw(dev, &(invar_linear_dw_args){at[DROUTER], at[DLOGITS], b->x, units, 0}));
    assert_ok(invar_linear_dx(
        dev, &(invar_linear_dx_args){at[DX_ROUTER], {{at[DLOGITS], l->router_weight}}, 1, 1, {0}}));

    for (int i = 0; i < temps.count; i++)
        invar_test_free(&temps.at[i]);
    free(start);
}

/* ---- batches --------------------------------------------------------------------------------- */

static int32_t *replay_row(const batch *b, int64_t token)
{
    return (int32_t *)b->replay.data + token * b->replay.row_stride;
}

static batch batch_new(const layer *l, int64_t tokens)
{
    invar_dtype storage = l->format->storage;
    batch b = {make_matrix(storage, tokens, l->width), make_matrix(storage, tokens, l->width),
               make_matrix(storage, tokens, l->width),
               make_matrix(INVAR_DTYPE_I32, tokens, l->slots)};

    invar_test_fill_normal(&b.x, 11, 1.0f);
    invar_test_fill_normal(&b.dout, 12, 1.0f);
    invar_test_fill_normal(&b.shared, 13, 1.0f);
    return b;
}

static void batch_free(batch *b)
{
    invar_test_free(&b->x, &b->dout, &b->shared, &b->replay);
}

static batch batch_rows(const batch *b, int64_t first, int64_t count)
{
    batch view = {invar_tensor_rows(&b->x, first, count), invar_tensor_rows(&b->dout, first, count),
                  invar_tensor_rows(&b->shared, first, count),
                  invar_tensor_rows(&b->replay, first, count)};
    return view;
}

/*
 * How fill_replay splits tokens over experts: all to one, one after the other, only some experts
 * used, random.
 */
typedef enum split { SPLIT_ONE, SPLIT_EACH, SPLIT_HOLES, SPLIT_RANDOM, SPLITS } split;

static void fill_replay(const batch *b, const layer *l, split kind)
{
    for (int64_t t = 0; t < b->x.shape[0]; t++)
        for (int64_t s = 0; s < l->slots; s++) {
            uint32_t word = invar_test_random(21, (uint64_t)t) >> 3;
            int64_t first = kind == SPLIT_ONE     ? 0
                            : kind == SPLIT_EACH  ? t
                            : kind == SPLIT_HOLES ? t % 2 * (l->experts / 2)
                                                  : (int64_t)word;
            replay_row(b, t)[s] = (int32_t)((first + s) % l->experts);
        }
}

/* Returns units of one token each. */
static invar_row_offsets single_units(int64_t tokens)
{
    enum { MOST = 64 };
    static int64_t start[MOST + 1];

    assert_true(tokens <= MOST);
    for (int64_t t = 0; t <= MOST; t++)
        start[t] = t;
    return (invar_row_offsets){start, tokens};
}

/* ---- tokens alone ---------------------------------------------------------------------------- */

/* Copies row `from` of src to row `to` of dst; both are contiguous. */
static void copy_row(const invar_tensor *dst, int64_t to, const invar_tensor *src, int64_t from)
{
    int64_t bytes = src->shape[1] * invar_dtype_bits(src->dtype) / 8;

    memcpy((char *)dst->data + to * bytes, (const char *)src->data + from * bytes, (size_t)bytes);
}

static void copy_token(const results *dst, int64_t to, const results *src, int64_t from)
{
    for (int i = 0; i < TOKEN_RESULTS; i++)
        copy_row(&dst->at[i], to, &src->at[i], from);
}

/* Adds the gradient of one unit to the running gradient. */
static void add_gradients(const results *dst, const results *src)
{
    for (int i = TOKEN_RESULTS; i < RESULTS; i++) {
        float *running = dst->at[i].data;
        const float *unit = src->at[i].data;
        int64_t count = src->at[i].shape[0] * src->at[i].shape[1];
        for (int64_t j = 0; j < count; j++)
            running[j] += unit[j];
    }
}

/* Runs token t of the batch alone, as one unit, and adds its results to `sum`. */
static void add_token_alone(const results *sum, const invar_device *dev, const layer *l,
                            const batch *b, int64_t t)
{
    batch one = batch_rows(b, t, 1);
    results alone = results_new(l, 1);

    run_layer(dev, l, &one, single_units(1), &alone);
    copy_token(sum, t, &alone, 0);
    add_gradients(sum, &alone);
    results_free(&alone);
}

/*
 * Checks that the batch, with units of one token, equals its tokens run alone one after the other.
 */
static void check_alone(const invar_device *dev, const layer *l, const batch *b, const char *what)
{
    int64_t tokens = b->x.shape[0];
    results whole = results_new(l, tokens), sum = results_new(l, tokens);

    run_layer(dev, l, b, single_units(tokens), &whole);
    for (int64_t t = 0; t < tokens; t++)
        add_token_alone(&sum, dev, l, b, t);
    assert_results(&whole, &sum, what);
    results_free(&whole);
    results_free(&sum);
}

static void test_moe_layer__token_alone_equals_token_in_batch(void **state)
{
    int64_t tokens = invar_test_count(7, 20);

    (void)state;
    for (int i = 0; i < INVAR_TEST_FORMATS * INVAR_NUMERICS_COUNT; i++) {
        layer l = layer_new(&invar_test_formats[i / 2], 1, 6, 2);
        batch b = batch_new(&l, tokens);
        invar_device dev;

        device_init(&dev, (invar_numerics)(i % 2), INVAR_CPU_PATH_SIMD, 1);
        for (int kind = 0; kind < SPLITS; kind++) {
            if (!invar_test_full() && (kind + i) % 2 != 0) // both numerics share the splits
                continue;
            fill_replay(&b, &l, (split)kind);
            check_alone(&dev, &l, &b, l.format->name);
        }
        batch_free(&b);
        layer_free(&l);
        device_release(&dev);
    }
}

/* ---- every split of tokens over experts ------------------------------------------------------ */

/* Writes the choice-th ordered selection of `slots` distinct experts. */
static void select_experts(int32_t *ids, int64_t choice, int64_t experts, int64_t slots)
{
    int32_t remaining[8];

    for (int32_t e = 0; e < experts; e++)
        remaining[e] = e;
    for (int64_t s = 0; s < slots; s++) {
        int64_t left = experts - s, pick = s + choice % left;
        choice /= left;
        ids[s] = remaining[pick];
        remaining[pick] = remaining[s];
        remaining[s] = ids[s];
    }
}

static void check_every_split(const invar_device *dev, const invar_test_format *f, int64_t tokens,
                              int64_t slots)
{
    enum { MAX_ALONE = 5 * 6 };
    const int64_t experts = 3, choices = slots == 1 ? 3 : 6;
    layer l = layer_new(f, 1, experts, slots);
    batch b = batch_new(&l, tokens);
    results alone[MAX_ALONE]; // result of token t with choice c: t * choices + c
    int64_t splits = 1;

    assert_true(tokens * choices <= MAX_ALONE);
    for (int64_t i = 0; i < tokens * choices; i++) {
        batch one = batch_rows(&b, i / choices, 1);
        alone[i] = results_new(&l, 1);
        select_experts(replay_row(&one, 0), i % choices, experts, slots);
        run_layer(dev, &l, &one, single_units(1), &alone[i]);
    }
    for (int64_t t = 0; t < tokens; t++)
        splits *= choices;
    for (int64_t n = 0; n < splits; n++) {
        results whole = results_new(&l, tokens), sum = results_new(&l, tokens);
        for (int64_t t = 0, rest = n; t < tokens; t++, rest /= choices) {
            const results *one = &alone[t * choices + rest % choices];
            select_experts(replay_row(&b, t), rest % choices, experts, slots);
            copy_token(&sum, t, one, 0);
            add_gradients(&sum, one);
        }
        run_layer(dev, &l, &b, single_units(tokens), &whole);
        assert_results(&whole, &sum, f->name);
        results_free(&whole);
        results_free(&sum);
    }
    for (int64_t i = 0; i < tokens * choices; i++)
        results_free(&alone[i]);
    batch_free(&b);
    layer_free(&l);
}

static void test_moe_layer__every_split_of_tokens_over_experts(void **state)
{
    (void)state;
    for (int i = 0; i < INVAR_TEST_STORAGE_FORMATS * INVAR_NUMERICS_COUNT; i++) {
        invar_device dev;

        device_init(&dev, (invar_numerics)(i % 2), INVAR_CPU_PATH_SIMD, 1);
        check_every_split(&dev, &invar_test_formats[i / 2], invar_test_count(4, 5), 1);
        check_every_split(&dev, &invar_test_formats[i / 2], invar_test_count(3, 4), 2);
        device_release(&dev);
    }
}

/* ---- order and neighbors --------------------------------------------------------------------- */

/* Makes the router's scores of a token depend on the token before it. */
static void leak_scores(invar_device *dev)
{
    dev->backend = row_leak_backend(invar_test_heap_backend(), INVAR_OP_LINEAR_FWD,
                                    offsetof(invar_linear_fwd_args, x));
}

/* Compares each token with itself in reversed and rotated batches. */
static void compare_orders(const invar_device *dev, const invar_test_format *f, unsigned *changed)
{
    const int64_t tokens = 9;
    layer l = layer_new(f, 1, 4, 2);
    batch b = batch_new(&l, tokens), other = batch_new(&l, tokens);
    results expected = results_new(&l, tokens), restored = results_new(&l, tokens);

    fill_replay(&b, &l, SPLIT_RANDOM);
    run_layer(dev, &l, &b, single_units(tokens), &expected);
    for (int64_t rotation = 0; rotation < tokens; rotation += 4) {
        results got = results_new(&l, tokens);
        for (int64_t t = 0; t < tokens; t++) {
            int64_t from = (rotation + tokens - 1 - t) % tokens;
            copy_row(&other.x, t, &b.x, from);
            copy_row(&other.dout, t, &b.dout, from);
            copy_row(&other.shared, t, &b.shared, from);
            copy_row(&other.replay, t, &b.replay, from);
        }
        run_layer(dev, &l, &other, single_units(tokens), &got);
        for (int64_t t = 0; t < tokens; t++)
            copy_token(&restored, (rotation + tokens - 1 - t) % tokens, &got, t);
        compare_results(&restored, &expected, TOKEN_RESULTS, "order", changed);
        results_free(&got);
    }
    results_free(&expected);
    results_free(&restored);
    batch_free(&b);
    batch_free(&other);
    layer_free(&l);
}

/*
 * Each token keeps its results in reversed and rotated batches. Gradients are sums in order, so
 * they are not compared.
 */
static void test_moe_layer__order_of_tokens_changes_no_token(void **state)
{
    (void)state;
    for (int i = 0; i < INVAR_TEST_STORAGE_FORMATS * INVAR_NUMERICS_COUNT; i++) {
        invar_device dev;

        device_init(&dev, (invar_numerics)(i % 2), INVAR_CPU_PATH_SIMD, 1);
        compare_orders(&dev, &invar_test_formats[i / 2], NULL);
        device_release(&dev);
    }
}

/* Compares the middle token of a batch with itself alone if all other tokens are `poison`. */
static void compare_poisoned(const invar_device *dev, const invar_test_format *f, float poison,
                             unsigned *changed)
{
    const int64_t tokens = 5, middle = 2;
    layer l = layer_new(f, 1, 3, 2);
    batch b = batch_new(&l, tokens), one = batch_rows(&b, middle, 1);
    results alone = results_new(&l, 1), whole = results_new(&l, tokens), view;

    fill_replay(&b, &l, SPLIT_ONE);
    for (int64_t t = 0; t < tokens; t++) {
        batch row = batch_rows(&b, t, 1);
        if (t == middle)
            continue;
        invar_test_fill(&row.x, poison);
        invar_test_fill(&row.dout, poison);
        invar_test_fill(&row.shared, poison);
    }
    run_layer(dev, &l, &one, single_units(1), &alone);
    run_layer(dev, &l, &b, single_units(tokens), &whole);
    view = results_rows(&whole, middle, 1);
    compare_results(&view, &alone, TOKEN_RESULTS, "neighbors", changed);
    results_free(&alone);
    results_free(&whole);
    batch_free(&b);
    layer_free(&l);
}

/*
 * The middle token keeps its bits if all other tokens are NaN, infinite or large enough to
 * overflow.
 */
static void test_moe_layer__neighbors_change_nothing(void **state)
{
    static const float poison[] = {NAN, INFINITY, 3e38f};

    (void)state;
    for (int i = 0; i < INVAR_TEST_FORMATS * INVAR_NUMERICS_COUNT * 3; i++) {
        invar_device dev;

        device_init(&dev, (invar_numerics)(i / 3 % 2), INVAR_CPU_PATH_SIMD, 1);
        compare_poisoned(&dev, &invar_test_formats[i / 6], poison[i % 3], NULL);
        device_release(&dev);
    }
}

/* Control: tokens whose scores depend on other tokens are seen, in every result. */
static void test_moe_layer__tokens_that_depend_on_others_are_seen(void **state)
{
    (void)state;
    for (int i = 0; i < INVAR_TEST_FORMATS; i++) {
        unsigned in_order = 0, among_neighbors = 0;
        invar_device dev;

        device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
        leak_scores(&dev);
        compare_orders(&dev, &invar_test_formats[i], &in_order);
        compare_poisoned(&dev, &invar_test_formats[i], 2.0f, &among_neighbors);
        assert_changed(in_order, ALL_TOKEN_RESULTS);
        assert_changed(among_neighbors, ALL_TOKEN_RESULTS);
        device_release(&dev);
    }
}

/* ---- micro-batches --------------------------------------------------------------------------- */

static const int64_t unit_starts[] = {0, 3, 4, 4, 21, 26, 28};
enum { UNITS = 6, UNIT_TOKENS = 28 };

/* Runs the batch as micro-batches: one ends after unit u if bit u of `cuts` is set. */
static void run_cut(const invar_device *dev, const layer *l, const batch *b, unsigned cuts,
                    const results *r)
{
    int64_t first = 0;

    for (int64_t u = 0; u < UNITS; u++) {
        int64_t start[UNITS + 1], begin = unit_starts[first];
        batch part = batch_rows(b, begin, unit_starts[u + 1] - begin);
        results part_results = results_rows(r, begin, unit_starts[u + 1] - begin);

        if (u + 1 < UNITS && !(cuts >> u & 1))
            continue;
        for (int64_t v = first; v <= u + 1; v++)
            start[v - first] = unit_starts[v] - begin;
        run_layer(dev, l, &part, (invar_row_offsets){start, u + 1 - first}, &part_results);
        first = u + 1;
    }
}

static void test_moe_layer__micro_batches_change_nothing(void **state)
{
    unsigned step = (unsigned)invar_test_count(9, 1);

    (void)state;
    for (int i = 0; i < INVAR_TEST_FORMATS * INVAR_NUMERICS_COUNT; i++) {
        layer l = layer_new(&invar_test_formats[i / 2], 1, 4, 2);
        batch b = batch_new(&l, UNIT_TOKENS);
        results whole = results_new(&l, UNIT_TOKENS);
        invar_device dev;

        device_init(&dev, (invar_numerics)(i % 2), INVAR_CPU_PATH_SIMD, 1);
        fill_replay(&b, &l, SPLIT_RANDOM);
        run_cut(&dev, &l, &b, 0, &whole);
        for (unsigned cuts = 1; cuts < 1u << (UNITS - 1); cuts += step) {
            results parts = results_new(&l, UNIT_TOKENS);
            run_cut(&dev, &l, &b, cuts, &parts);
            assert_results(&parts, &whole, l.format->name);
            results_free(&parts);
        }
        results_free(&whole);
        batch_free(&b);
        layer_free(&l);
        device_release(&dev);
    }
}

/* Control: one unit instead of six is another order of additions, which changes every gradient. */
static void test_moe_layer__other_units_change_gradients(void **state)
{
    static const int64_t one[] = {0, UNIT_TOKENS};

    (void)state;
    for (int i = 0; i < INVAR_TEST_STORAGE_FORMATS * INVAR_NUMERICS_COUNT; i++) {
        layer l = layer_new(&invar_test_formats[i / 2], 1, 4, 2);
        batch b = batch_new(&l, UNIT_TOKENS);
        results cut = results_new(&l, UNIT_TOKENS), uncut = results_new(&l, UNIT_TOKENS);
        invar_device dev;

        device_init(&dev, (invar_numerics)(i % 2), INVAR_CPU_PATH_SIMD, 1);
        fill_replay(&b, &l, SPLIT_ONE);
        run_cut(&dev, &l, &b, 0, &cut);
        run_layer(&dev, &l, &b, (invar_row_offsets){one, 1}, &uncut);
        for (int j = 0; j < TOKEN_RESULTS; j++)
            invar_assert_bits_tensor(&uncut.at[j], &cut.at[j], result_names[j]);
        for (int j = TOKEN_RESULTS; j < RESULTS; j++)
            assert_true(invar_tensors_differ(&uncut.at[j], &cut.at[j]));
        results_free(&cut);
        results_free(&uncut);
        batch_free(&b);
        layer_free(&l);
        device_release(&dev);
    }
}

/* ---- threads, code paths, shards, replay ----------------------------------------------------- */

static const struct {
    invar_cpu_path path;
    int threads;
} devices[] = {{INVAR_CPU_PATH_SIMD, 2},
               {INVAR_CPU_PATH_SIMD, 3},
               {INVAR_CPU_PATH_SIMD, 8},
               {INVAR_CPU_PATH_PORTABLE, 2}};

enum { DEVICES = sizeof devices / sizeof *devices, DEVICE_TOKENS = 21 };

/*
 * Compares the results of each device with those of one thread, which it writes to `expected`. With
 * `changed`, for a control, the other devices have an op whose rows depend on other rows.
 */
static void compare_devices(const results *expected, const layer *l, const batch *b,
                            invar_numerics numerics, unsigned changed[DEVICES])
{
    invar_device dev;

    device_init(&dev, numerics, INVAR_CPU_PATH_SIMD, 1);
    run_layer(&dev, l, b, single_units(DEVICE_TOKENS), expected);
    device_release(&dev);
    for (int i = 0; i < DEVICES; i++) {
        results got = results_new(l, DEVICE_TOKENS);
        device_init(&dev, numerics, devices[i].path, devices[i].threads);
        if (changed)
            leak_scores(&dev);
        run_layer(&dev, l, b, single_units(DEVICE_TOKENS), &got);
        compare_results(&got, expected, RESULTS, l->format->name, changed ? &changed[i] : NULL);
        results_free(&got);
        device_release(&dev);
    }
}

/* Replays the routing of `b` and compares the results with those of the router's choice. */
static void compare_replay(const results *expected, const layer *l, const batch *b,
                           invar_numerics numerics, unsigned *changed)
{
    results replayed = results_new(l, DEVICE_TOKENS);
    invar_device dev;

    device_init(&dev, numerics, INVAR_CPU_PATH_SIMD, 1);
    run_layer(&dev, l, b, single_units(DEVICE_TOKENS), &replayed);
    compare_results(&replayed, expected, RESULTS, "replay", changed);
    device_release(&dev);
    results_free(&replayed);
}

/*
 * Checks threads and CPU paths, then the replay of the router's choice. With `control`, other
 * results on the other devices and the replay of other experts must be seen in every result, except
 * that the ids are the router's choice also in a replay.
 */
static void check_devices(const invar_test_format *f, invar_numerics numerics, int32_t k_shards,
                          bool control)
{
    layer l = layer_new(f, k_shards, 4, 2);
    batch b = batch_new(&l, DEVICE_TOKENS);
    results expected = results_new(&l, DEVICE_TOKENS);
    unsigned by_device[DEVICES] = {0}, by_replay = 0;

    invar_test_free(&b.replay); // without replay, the router chooses
    compare_devices(&expected, &l, &b, numerics, control ? by_device : NULL);
    b.replay = invar_test_copy(&expected.at[IDS]);
    if (control)
        fill_replay(&b, &l, SPLIT_EACH);
    compare_replay(&expected, &l, &b, numerics, control ? &by_replay : NULL);
    for (int i = 0; i < DEVICES && control; i++)
        assert_changed(by_device[i], ALL_RESULTS);
    if (control)
        assert_changed(by_replay, ALL_RESULTS & ~(1u << IDS));
    results_free(&expected);
    batch_free(&b);
    layer_free(&l);
}

static void test_moe_layer__threads_paths_and_replay_change_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < INVAR_TEST_FORMATS * INVAR_NUMERICS_COUNT; i++) {
        bool fp8 = invar_test_formats[i / 2].w == INVAR_DTYPE_FP8; // fp8 needs wide shards
        int32_t most = fp8 ? (int32_t)invar_test_count(2, 4) : 4;
        for (int32_t k_shards = 1; k_shards <= most; k_shards *= 2)
            if (invar_test_full() || k_shards % 2 == i % 2) // one with shards, one without
                check_devices(&invar_test_formats[i / 2], (invar_numerics)(i % 2), k_shards, false);
    }
}

static void test_moe_layer__other_devices_and_experts_are_seen(void **state)
{
    (void)state;
    for (int i = 0; i < INVAR_TEST_FORMATS; i++)
        check_devices(&invar_test_formats[i], INVAR_NUMERICS_IEEE, 1, true);
}

/* ---- gradients against finite differences in double ------------------------------------------ */

/* The f32 layer in double. Parameters and inputs are one list, so that each value can be varied. */
enum { P_X, P_ROUTER, P_GATE, P_UP, P_DOWN, PARAMETERS };

typedef struct double_layer {
    const layer *l;
    const batch *b;
    double *at[PARAMETERS];
    int64_t count[PARAMETERS];
} double_layer;

static double *to_doubles(const invar_tensor *t, int64_t *count)
{
    double *values = malloc((size_t)(t->shape[0] * t->shape[1]) * sizeof *values);

    assert_non_null(values);
    *count = t->shape[0] * t->shape[1];
    for (int64_t i = 0; i < *count; i++)
        values[i] = (double)((const float *)t->data)[i];
    return values;
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0.0;

    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Returns dout . (output of expert e for x). */
static double expert_value(const double_layer *m, const double *x, int64_t e, const float *dout)
{
    const layer *l = m->l;
    double act[64], sum = 0.0;

    for (int64_t f = 0; f < l->hidden; f++) {
        double gate = dot(x, m->at[P_GATE] + (e * l->hidden + f) * l->width, l->width);
        double up = dot(x, m->at[P_UP] + (e * l->hidden + f) * l->width, l->width);
        act[f] = gate / (1.0 + exp(-gate)) * up;
    }
    for (int64_t d = 0; d < l->width; d++)
        sum +=
            (double)dout[d] * dot(act, m->at[P_DOWN] + (e * l->width + d) * l->hidden, l->hidden);
    return sum;
}

/* Returns the sum of dout * out without the shared expert, which depends on no parameter. */
static double loss(const double_layer *m)
{
    const layer *l = m->l;
    double total = 0.0;

    for (int64_t t = 0; t < m->b->x.shape[0]; t++) {
        const double *x = m->at[P_X] + t * l->width;
        const int32_t *ids = replay_row(m->b, t);
        const float *dout = (const float *)m->b->dout.data + t * l->width;
        double score[8], chosen = 0.0, all = 0.0, value = 0.0;

        for (int64_t e = 0; e < l->experts; e++) {
            score[e] = exp(dot(x, m->at[P_ROUTER] + e * l->width, l->width));
            all += score[e];
        }
        for (int64_t s = 0; s < l->slots; s++) {
            chosen += score[ids[s]] / all;
            value += score[ids[s]] / all * expert_value(m, x, ids[s], dout);
        }
        total += value / (chosen + (double)l->router.normalise_eps) * (double)l->router.scale;
    }
    return total;
}

static double finite_difference(const double_layer *m, int parameter, int64_t i)
{
    const double step = 1e-5;
    double *p = &m->at[parameter][i], before = *p, up, down;

    *p = before + step;
    up = loss(m);
    *p = before - step;
    down = loss(m);
    *p = before;
    return (up - down) / (2 * step);
}

static void test_moe_layer__gradients_match_finite_differences(void **state)
{
    static const int grad_of_parameter[PARAMETERS] = {DX_EXPERTS, DROUTER, DGATE, DUP, DDOWN};
    static const int64_t start[] = {0, 2, 3};
    layer l = layer_new(&invar_test_formats[0], 1, 3, 2);
    batch b = batch_new(&l, 3);
    results r = results_new(&l, 3);
    double_layer m = {.l = &l, .b = &b};
    const invar_tensor *source[PARAMETERS] = {&b.x, &l.router_weight, &l.gate, &l.up, &l.down};
    invar_device dev;

    (void)state;
    fill_replay(&b, &l, SPLIT_RANDOM);
    device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    run_layer(&dev, &l, &b, (invar_row_offsets){start, 2}, &r);
    for (int p = 0; p < PARAMETERS; p++)
        m.at[p] = to_doubles(source[p], &m.count[p]);
    for (int p = 0; p < PARAMETERS; p++)
        for (int64_t i = 0; i < m.count[p]; i++) {
            double got = (double)((const float *)r.at[grad_of_parameter[p]].data)[i], exact;
            if (p == P_X)
                got += (double)((const float *)r.at[DX_ROUTER].data)[i];
            exact = finite_difference(&m, p, i);
            if (!(fabs(got - exact) <= 2e-5 + 1e-5 * fabs(exact)))
                fail_msg("parameter %d, element %d: got %.9g, expected %.9g", p, (int)i, got,
                         exact);
        }
    for (int p = 0; p < PARAMETERS; p++)
        free(m.at[p]);
    results_free(&r);
    batch_free(&b);
    layer_free(&l);
    device_release(&dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moe_layer__token_alone_equals_token_in_batch),
        cmocka_unit_test(test_moe_layer__every_split_of_tokens_over_experts),
        cmocka_unit_test(test_moe_layer__order_of_tokens_changes_no_token),
        cmocka_unit_test(test_moe_layer__neighbors_change_nothing),
        cmocka_unit_test(test_moe_layer__tokens_that_depend_on_others_are_seen),
        cmocka_unit_test(test_moe_layer__micro_batches_change_nothing),
        cmocka_unit_test(test_moe_layer__other_units_change_gradients),
        cmocka_unit_test(test_moe_layer__threads_paths_and_replay_change_nothing),
        cmocka_unit_test(test_moe_layer__other_devices_and_experts_are_seen),
        cmocka_unit_test(test_moe_layer__gradients_match_finite_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
