/*
 * attention_arguments.c - tests that each wrong argument of the attention ops is rejected by name.
 *
 * Each case changes one argument of a call that succeeds.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>

#include "tests/unit/kernels-deterministic/cpu/attention_case.h"

static const attention_form form = {INVAR_NUMERICS_SM90, INVAR_DTYPE_BF16, 4, 2, 16,
                                    {0.0f, 0, 0, 0}};
static const int64_t lengths[] = {20, 5};

typedef struct fixture {
    invar_device dev;
    attention_pack pack;
    invar_kv_pages cache;
} fixture;

static int setup(void **state)
{
    static fixture f;

    invar_test_device_init(&f.dev, form.numerics, INVAR_CPU_PATH_SIMD, 1);
    f.pack = attention_pack_new(&form, 2, lengths);
    attention_fill(&f.pack, 0, 1);
    attention_fill(&f.pack, 1, 2);
    f.cache.k = invar_test_tensor(invar_tensor_4d(NULL, form.dtype, 6, 8, 2, 16));
    f.cache.v = invar_test_tensor(invar_tensor_4d(NULL, form.dtype, 6, 8, 2, 16));
    f.cache.pages = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_I32, 2, 3));
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;

    attention_pack_free(&f->pack);
    invar_test_free(&f->cache.k, &f->cache.v, &f->cache.pages);
    invar_test_device_release(&f->dev);
    return 0;
}

/* Gives pages 0, 1 and 2 to the first sequence, 3 to the second. The -1 after it is not read. */
static void reset_pages(const fixture *f)
{
    static const int32_t pages[] = {0, 1, 2, 3, -1, -1};

    memcpy(f->cache.pages.data, pages, sizeof pages);
}

/* Asserts that the op rejects a copy `a` of good arguments after a change. */
#define REFUSED(op, good, change, text)                                                            \
    do {                                                                                           \
        invar_##op##_args a = (good);                                                              \
        change;                                                                                    \
        assert_fails(invar_##op(&f->dev, &a), INVAR_E_INVALID, (text));                            \
    } while (0)

/* Bad arguments that are common to the ops on packed samples. */
#define REFUSED_PACKED(op, name, good)                                                             \
    do {                                                                                           \
        REFUSED(op, good, a.q.dtype = INVAR_DTYPE_NONE, name ": q: missing");                      \
        REFUSED(op, good, a.q.dtype = INVAR_DTYPE_I32, name ": q: type i32");                      \
        REFUSED(op, good, a.q.rank = 2, name ": q: rank 2");                                       \
        REFUSED(op, good, a.q.data = NULL, name ": q: no data");                                   \
        REFUSED(op, good, a.q.row_stride = 63, name ": q: row stride 63");                         \
        REFUSED(op, good, a.q.shape[1] = 3, name ": q: 3 query heads over 2 kv heads");            \
        REFUSED(op, good, a.q.shape[1] = 0, name ": q: 0 query heads over 2 kv heads");            \
        REFUSED(op, good, a.q.shape[2] = 8, name ": k: extent 16 of index 2");                     \
        REFUSED(op, good, (a.q.shape[2] = a.k.shape[2] = 0), name ": q: head dim 0");              \
        REFUSED(op, good,                                                                          \
                (a.q.shape[2] = a.k.shape[2] = 257, a.q.row_stride = a.k.row_stride = 2000),       \
                name ": q: head dim 257");                                                         \
        REFUSED(op, good, a.k.dtype = INVAR_DTYPE_F32, name ": k is f32 but q is bf16");           \
        REFUSED(op, good, a.k.shape[0] = 24, name ": k: extent 24 of index 0");                    \
        REFUSED(op, good, a.k.rank = 4, name ": k: rank 4");                                       \
        REFUSED(op, good, a.k.shape[1] = 0, name ": q: 4 query heads over 0 kv heads");            \
        REFUSED(op, good, a.v.dtype = INVAR_DTYPE_F32, name ": v is f32 but k is bf16");           \
        REFUSED(op, good, a.v.shape[1] = 1, name ": v: extent 1 of index 1");                      \
        REFUSED(op, good, a.v.row_stride = 0, name ": v: row stride 0");                           \
        REFUSED(op, good, a.o.shape[0] = 24, name ": o: extent 24 of index 0");                    \
        REFUSED(op, good, a.o.dtype = INVAR_DTYPE_F32, name ": o is f32 but q is bf16");           \
        REFUSED(op, good, a.lse2.dtype = INVAR_DTYPE_BF16, name ": lse2: type bf16");              \
        REFUSED(op, good, a.lse2.rank = 1, name ": lse2: rank 1");                                 \
        REFUSED(op, good, a.lse2.shape[1] = 2, name ": lse2: extent 2 of index 1");                \
        REFUSED(op, good, a.samples.offsets = NULL, name ": samples: 2 segments");                 \
        REFUSED(op, good, a.samples.count = 1, name ": samples: segments cover rows 0 to 20");     \
        REFUSED(op, good, a.samples.count = -1, name ": samples: -1 segments");                    \
        REFUSED(op, good, a.samples.offsets = backwards, name ": samples: segment 1 runs back");   \
        REFUSED_SHAPE(op, name, good);                                                             \
    } while (0)

#define REFUSED_SHAPE(op, name, good)                                                              \
    do {                                                                                           \
        REFUSED(op, good, a.shape.scale = -1.0f, name ": shape.scale: -1");                        \
        REFUSED(op, good, a.shape.scale = NAN, name ": shape.scale: nan");                         \
        REFUSED(op, good, a.shape.scale = INFINITY, name ": shape.scale: inf");                    \
        REFUSED(op, good, a.shape.window = -1, name ": shape.window: -1");                         \
        REFUSED(op, good, a.shape.kv_span = -128, name ": shape.kv_span: -128");                   \
        REFUSED(op, good, a.shape.kv_span = 64, name ": shape.kv_span: 64");                       \
        REFUSED(op, good, a.shape.q_span = -128, name ": shape.q_span: -128");                     \
        REFUSED(op, good, a.shape.q_span = 200, name ": shape.q_span: 200");                       \
    } while (0)

static const int64_t backwards[] = {0, 26, 25};

static void test_attention_arguments__fwd(void **state)
{
    fixture *f = *state;
    invar_attention_fwd_args good = attention_fwd_args(&f->pack);

    assert_ok(invar_attention_fwd(&f->dev, &good));
    REFUSED_PACKED(attention_fwd, "attention.fwd", good);
    good.lse2 = (invar_tensor){0}; // optional
    assert_ok(invar_attention_fwd(&f->dev, &good));
}

static void test_attention_arguments__bwd(void **state)
{
    fixture *f = *state;
    invar_attention_bwd_args good = attention_bwd_args(&f->pack);

    attention_run(&f->dev, &f->pack);
    REFUSED_PACKED(attention_bwd, "attention.bwd", good);
    REFUSED(attention_bwd, good, a.head_shards = 3, "attention.bwd: head_shards: 3 shards");
    REFUSED(attention_bwd, good, a.head_shards = 2, "attention.bwd: head_atom: 0 heads");
    REFUSED(attention_bwd, good, a.lse2.dtype = INVAR_DTYPE_NONE, "attention.bwd: lse2: missing");
    REFUSED(attention_bwd, good, a.o.dtype = INVAR_DTYPE_NONE, "attention.bwd: o: missing");
    REFUSED(attention_bwd, good, a.d_o.dtype = INVAR_DTYPE_F32, "attention.bwd: d_o is f32");
    REFUSED(attention_bwd, good, a.d_o.shape[2] = 4, "attention.bwd: d_o: extent 4");
    REFUSED(attention_bwd, good, a.dq.dtype = INVAR_DTYPE_F32, "attention.bwd: dq is f32");
    REFUSED(attention_bwd, good, a.dq.shape[1] = 2, "attention.bwd: dq: extent 2");
    REFUSED(attention_bwd, good, a.dk.data = NULL, "attention.bwd: dk: no data");
    REFUSED(attention_bwd, good, a.dk.shape[1] = 4, "attention.bwd: dk: ");
    REFUSED(attention_bwd, good, a.dv.rank = 2, "attention.bwd: dv: rank 2");
    REFUSED(attention_bwd, good, a.dv.row_stride = 1, "attention.bwd: dv: row stride 1");
}

/* A span is a multiple of the key block, which is 64 if the head dim exceeds 128. */
static void test_attention_arguments__span_of_64_for_large_heads(void **state)
{
    fixture *f = *state;
    attention_form large = {form.numerics, form.dtype, 1, 1, 136, {0.0f, 0, 64, 64}};
    attention_pack p = attention_sample(&large, 3, 1);
    invar_attention_fwd_args good = attention_fwd_args(&p);

    assert_ok(invar_attention_fwd(&f->dev, &good));
    REFUSED(attention_fwd, good, a.shape.kv_span = 32, "attention.fwd: shape.kv_span: 32");
    attention_pack_free(&p);
}

/* Bad arguments that are common to the ops on a KV cache. */
#define REFUSED_CACHE(op, name, good)                                                              \
    do {                                                                                           \
        REFUSED(op, good, a.cache.k.dtype = INVAR_DTYPE_FP8, name ": cache.k: type fp8");          \
        REFUSED(op, good, a.cache.k.dtype = INVAR_DTYPE_F32, name ": cache.v is bf16");            \
        REFUSED(op, good, a.cache.k.rank = 3, name ": cache.k: rank 3");                           \
        REFUSED(op, good, a.cache.k.shape[0] = a.cache.v.shape[0] = 0, name ": cache.k: no page"); \
        REFUSED(op, good, a.cache.v.shape[1] = 4, name ": cache.v: extent 4 of index 1");          \
        REFUSED(op, good, (a.cache.k.shape[3] = a.cache.v.shape[3] = 8),                           \
                name ": cache.k: extent 8 of index 3");                                            \
        REFUSED(op, good, (a.cache.k.shape[1] = a.cache.v.shape[1] = 0), name ": cache.k: pages"); \
        REFUSED(op, good, a.cache.pages.dtype = INVAR_DTYPE_F32, name ": cache.pages: type f32");  \
        REFUSED(op, good, a.cache.pages.shape[0] = 1, name ": cache.pages: extent 1 of index 0");  \
        REFUSED(op, good, a.cache.pages.shape[1] = 2, name ": cache.pages: sequence 0");           \
        REFUSED(op, good, a.rows.count = 1, name ": rows: segments cover");                        \
        REFUSED(op, good, a.rows.offsets = backwards, name ": rows: segment 1 runs backwards");    \
        REFUSED(op, good, a.lengths = NULL, name ": lengths: missing");                            \
        REFUSED(op, good, a.lengths = too_short, name ": lengths: sequence 1 has length 4");       \
        REFUSED(op, good, a.lengths = too_long, name ": cache.pages: sequence 0 of length 25");    \
        REFUSED(op, good, a.lengths = more_pages, name ": cache.pages: page -1 at index 1");       \
        REFUSED(op, good, ((int32_t *)a.cache.pages.data)[2] = 6, name ": cache.pages: page 6");   \
        reset_pages(f);                                                                            \
        REFUSED(op, good, ((int32_t *)a.cache.pages.data)[3] = -1, name ": cache.pages: page -1"); \
        reset_pages(f);                                                                            \
    } while (0)

static const int64_t too_short[] = {20, 4};
static const int64_t too_long[] = {25, 5};
static const int64_t more_pages[] = {20, 9};

static void test_attention_arguments__kv_write(void **state)
{
    fixture *f = *state;
    invar_kv_write_args good = {
        f->cache, f->pack.k, f->pack.v, {f->pack.start, f->pack.count}, lengths};

    reset_pages(f);
    assert_ok(invar_kv_write(&f->dev, &good));
    REFUSED_CACHE(kv_write, "kv.write", good);
    REFUSED(kv_write, good, a.k.dtype = INVAR_DTYPE_I32, "kv.write: k: type i32");
    REFUSED(kv_write, good, a.k.shape[0] = 24, "kv.write: v: extent 25");
    REFUSED(kv_write, good, a.v.shape[2] = 8, "kv.write: v: extent 8");
    REFUSED(kv_write, good, (a.k.shape[1] = a.v.shape[1] = 1), "kv.write: cache.k: extent 2");
    REFUSED(kv_write, good, (a.k.dtype = a.v.dtype = INVAR_DTYPE_F32),
            "kv.write: cache.k is bf16 but k is f32");
}

/* Two page table entries that are written must not name one page, in one sequence or two. */
static void test_attention_arguments__kv_write_fills_slots_once(void **state)
{
    fixture *f = *state;
    int32_t *pages = f->cache.pages.data;
    invar_kv_write_args good = {
        f->cache, f->pack.k, f->pack.v, {f->pack.start, f->pack.count}, lengths};

    reset_pages(f);
    REFUSED(kv_write, good, pages[1] = pages[0],
            "kv.write: cache.pages: sequences 0 and 0 both fill slots of page");
    reset_pages(f);
    REFUSED(kv_write, good, pages[good.cache.pages.row_stride] = pages[1],
            "kv.write: cache.pages: sequences 0 and 1 both fill slots of page");
    reset_pages(f);
}

static void test_attention_arguments__paged(void **state)
{
    fixture *f = *state;
    invar_attention_paged_args good = {
        f->pack.o, f->pack.q, f->cache, {f->pack.start, f->pack.count}, lengths, form.shape};

    reset_pages(f);
    assert_ok(invar_attention_paged(&f->dev, &good));
    REFUSED_CACHE(attention_paged, "attention.paged", good);
    REFUSED_SHAPE(attention_paged, "attention.paged", good);
    REFUSED(attention_paged, good, a.q.dtype = INVAR_DTYPE_I32, "attention.paged: q: type i32");
    REFUSED(attention_paged, good, a.q.rank = 2, "attention.paged: q: rank 2");
    REFUSED(attention_paged, good, (a.q.shape[1] = a.o.shape[1] = 3),
            "attention.paged: q: 3 query heads over 2 kv heads");
    REFUSED(attention_paged, good, a.o.shape[1] = 2, "attention.paged: o: extent 2");
    REFUSED(attention_paged, good, a.o.data = NULL, "attention.paged: o: no data");
    REFUSED(attention_paged, good, (a.q.dtype = a.o.dtype = INVAR_DTYPE_F32),
            "attention.paged: cache.k is bf16 but q is f32");
}

/* Calls without rows or samples succeed. */
static void test_attention_arguments__empty_is_accepted(void **state)
{
    fixture *f = *state;
    const int64_t none[] = {0, 0}, zero = 0;
    attention_pack p = attention_pack_new(&form, 1, &zero);
    invar_kv_write_args write = {f->cache, p.k, p.v, {none, 1}, &zero};
    invar_attention_paged_args attend = {p.o, p.q, f->cache, {none, 1}, &zero, form.shape};

    attention_run(&f->dev, &p);
    p.count = 0;
    attention_run(&f->dev, &p);
    write.cache.pages.shape[0] = attend.cache.pages.shape[0] = 1;
    assert_ok(invar_kv_write(&f->dev, &write));
    assert_ok(invar_attention_paged(&f->dev, &attend));
    attention_pack_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_arguments__fwd),
        cmocka_unit_test(test_attention_arguments__bwd),
        cmocka_unit_test(test_attention_arguments__span_of_64_for_large_heads),
        cmocka_unit_test(test_attention_arguments__kv_write),
        cmocka_unit_test(test_attention_arguments__kv_write_fills_slots_once),
        cmocka_unit_test(test_attention_arguments__paged),
        cmocka_unit_test(test_attention_arguments__empty_is_accepted),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
