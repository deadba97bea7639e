/*
 * attention_accuracy.c - tests of the accuracy of attention against a model in double.
 *
 * The model reads the inputs as stored. Its own gradients are checked against finite differences of
 * its forward.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdlib.h>

#include "tests/unit/kernels-deterministic/cpu/attention_case.h"

/* One sample in double. */
typedef struct f64_model {
    const attention_form *form;
    int64_t length;
    int64_t q_size;  /* elements of q */
    int64_t kv_size; /* elements of k */
    double scale;
    double *q, *k, *v, *d_o;         /* (L, H, D) */
    double *o, *lse2, *dq, *dk, *dv; /* (L, H, D), lse2 (L, HQ) */
    double *size;                    /* (L, HQ, D) o computed with the magnitudes of v */
    double *p;                       /* (L) one row of probabilities */
} f64_model;

static double *new_doubles(int64_t count)
{
    double *x = calloc((size_t)count + 1, sizeof *x);

    assert_non_null(x);
    return x;
}

static double *load_f64(const invar_tensor *t)
{
    int64_t cols = invar_tensor_row_elements(t);
    double *x = new_doubles(t->shape[0] * cols);

    for (int64_t i = 0; i < t->shape[0]; i++)
        for (int64_t j = 0; j < cols; j++)
            x[i * cols + j] = invar_test_get(t, i, j);
    return x;
}

static f64_model f64_model_open(const attention_pack *p)
{
    f64_model m = {.form = &p->form, .length = p->start[1]};

    m.q_size = m.length * p->form.heads * p->form.dim;
    m.kv_size = m.length * p->form.kv_heads * p->form.dim;
    m.scale =
        p->form.shape.scale != 0.0f ? (double)p->form.shape.scale : 1.0 / sqrt((double)p->form.dim);
    m.q = load_f64(&p->q);
    m.k = load_f64(&p->k);
    m.v = load_f64(&p->v);
    m.d_o = load_f64(&p->d_o);
    m.o = new_doubles(m.q_size);
    m.size = new_doubles(m.q_size);
    m.lse2 = new_doubles(m.length * p->form.heads);
    m.dq = new_doubles(m.q_size);
    m.dk = new_doubles(m.kv_size);
    m.dv = new_doubles(m.kv_size);
    m.p = new_doubles(m.length);
    return m;
}

static void f64_model_close(f64_model *m)
{
    double *all[] = {m->q, m->k, m->v, m->d_o, m->o, m->lse2, m->dq, m->dk, m->dv, m->size, m->p};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static int64_t first_key(const f64_model *m, int64_t i)
{
    int64_t window = m->form->shape.window;

    return window > 0 && i >= window ? i - window + 1 : 0;
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0.0;

    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Computes o, lse2 and m->p of one row. */
static void f64_model_row(const f64_model *m, int64_t i, int64_t h)
{
    const attention_form *f = m->form;
    int64_t dim = f->dim, g = h / (f->heads / f->kv_heads), at = i * f->heads + h;
    double top = -INFINITY, sum = 0.0;

    for (int64_t j = first_key(m, i); j <= i; j++) {
        m->p[j] = dot(m->q + at * dim, m->k + (j * f->kv_heads + g) * dim, dim) * m->scale;
        top = fmax(top, m->p[j]);
    }
    for (int64_t j = first_key(m, i); j <= i; j++)
        sum += m->p[j] = exp(m->p[j] - top);
    for (int64_t d = 0; d < dim; d++)
        m->o[at * dim + d] = m->size[at * dim + d] = 0.0;
    for (int64_t j = first_key(m, i); j <= i; j++) {
        m->p[j] /= sum;
        for (int64_t d = 0; d < dim; d++) {
            double value = m->v[(j * f->kv_heads + g) * dim + d];

            m->o[at * dim + d] += m->p[j] * value;
            m->size[at * dim + d] += m->p[j] * fabs(value);
        }
    }
    m->lse2[at] = (top + log(sum)) * 1.4426950408889634;
}

static void f64_model_forward(const f64_model *m)
{
    for (int64_t i = 0; i < m->length; i++)
        for (int64_t h = 0; h < m->form->heads; h++)
            f64_model_row(m, i, h);
}

static void f64_model_backward(const f64_model *m)
{
    const attention_form *f = m->form;
    int64_t dim = f->dim;

    for (int64_t i = 0; i < m->length; i++) {
        for (int64_t h = 0; h < f->heads; h++) {
            int64_t g = h / (f->heads / f->kv_heads), at = (i * f->heads + h) * dim;
            double delta;

            f64_model_row(m, i, h);
            delta = dot(m->d_o + at, m->o + at, dim);
            for (int64_t j = first_key(m, i); j <= i; j++) {
                int64_t key = (j * f->kv_heads + g) * dim;
                double ds = m->p[j] * (dot(m->d_o + at, m->v + key, dim) - delta) * m->scale;

                for (int64_t d = 0; d < dim; d++) {
                    m->dq[at + d] += ds * m->k[key + d];
                    m->dk[key + d] += ds * m->q[at + d];
                    m->dv[key + d] += m->p[j] * m->d_o[at + d];
                }
            }
        }
    }
}

/* Returns the scalar whose gradient the backward computes. */
static double f64_model_loss(const f64_model *m)
{
    f64_model_forward(m);
    return dot(m->d_o, m->o, m->q_size);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void check_differences(const f64_model *m, double *x, const double *gradient, int64_t count)
{
    const double step = 1e-5;

    for (int64_t i = 0; i < count; i++) {
        double saved = x[i], up, down;

        x[i] = saved + step;
        up = f64_model_loss(m);
        x[i] = saved - step;
        down = f64_model_loss(m);
        x[i] = saved;
        assert_true(fabs((up - down) / (2.0 * step) - gradient[i]) <= 1e-8);
    }
}

static void test_attention_accuracy__model_matches_finite_differences(void **state)
{
    static const attention_form forms[] = {
        {INVAR_NUMERICS_IEEE, INVAR_DTYPE_F32, 4, 2, 3, {0.0f, 0, 0, 0}},
        {INVAR_NUMERICS_IEEE, INVAR_DTYPE_F32, 2, 2, 5, {0.7f, 4, 0, 0}},
    };

    (void)state;
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        attention_pack p = attention_sample(&forms[f], 11, 2);
        f64_model m = f64_model_open(&p);

        f64_model_backward(&m);
        check_differences(&m, m.q, m.dq, m.q_size);
        check_differences(&m, m.k, m.dk, m.kv_size);
        check_differences(&m, m.v, m.dv, m.kv_size);
        f64_model_close(&m);
        attention_pack_free(&p);
    }
}

/*
 * Bounds on |error|: `relative` times |exact|, plus `o_size` times the sum of magnitudes for o, or
 * the absolute bound `gradients`. The bound of lse2 is absolute only.
 */
typedef struct tolerance {
    double relative;
    double o_size;
    double gradients;
    double lse2;
} tolerance;

static void check_output(const attention_pack *p, const f64_model *m, const tolerance *t)
{
    int64_t cols = m->form->heads * m->form->dim;

    for (int64_t i = 0; i < m->q_size; i++) {
        double got = (double)invar_test_get(&p->o, i / cols, i % cols);
        double bound = t->relative * fabs(m->o[i]) + t->o_size * m->size[i];

        if (!(fabs(got - m->o[i]) <= bound))
            fail_msg("o: (%d, %d): got %.9g, expected %.9g, bound %.3g", (int)(i / cols),
                     (int)(i % cols), got, m->o[i], bound);
    }
}

static void check_accuracy(const attention_form *form, const tolerance *t)
{
    attention_pack p = attention_sample(form, invar_test_count(300, 1000), 6);
    f64_model m = f64_model_open(&p);
    invar_device dev;

    f64_model_forward(&m);
    f64_model_backward(&m);
    invar_test_device_init(&dev, form->numerics, INVAR_CPU_PATH_SIMD, 2);
    attention_run(&dev, &p);
    check_output(&p, &m, t);
    invar_assert_close(&p.lse2, m.lse2, 0.0, t->lse2, "lse2");
    invar_assert_close(&p.dq, m.dq, t->relative, t->gradients, "dq");
    invar_assert_close(&p.dk, m.dk, t->relative, t->gradients, "dk");
    invar_assert_close(&p.dv, m.dv, t->relative, t->gradients, "dv");
    invar_test_device_release(&dev);
    f64_model_close(&m);
    attention_pack_free(&p);
}

static const invar_attention_shape shapes[] = {
    {0.0f, 0, 0, 0}, {0.0f, 0, 128, 128}, {0.0f, 100, 256, 256}};

static void test_attention_accuracy__f32_vs_f64(void **state)
{
    // rounding of chains and sums; the error of a weight itself is at most 1.1e-7
    static const tolerance t = {
        .relative = 1e-6,
        .o_size = 2.5e-6,
        .gradients = 1.2e-5,
        .lse2 = 8e-6,
    };

    (void)state;
    for (int n = 0; n < 3; n++) {
        attention_form form = {INVAR_NUMERICS_IEEE, INVAR_DTYPE_F32, 4, 2, 64, shapes[n]};
        check_accuracy(&form, &t);
    }
}

static void test_attention_accuracy__bf16_vs_f64(void **state)
{
    // Rounding to bf16 has a relative error of up to 2^-8, once for each p in o and once for o. The
    // polynomial for bf16 has one of up to 1.0137e-4 for each p and so for their sum, which is
    // 1.463e-4 in lse2; the special function unit has 2.5e-7. The gradients inherit the rounding
    // errors of o, p and ds.
    static const tolerance polynomial = {
        .relative = 0x1p-8,
        .o_size = 0x1p-8 + 2 * 1.0137e-4 + 1e-6,
        .gradients = 3e-2,
        .lse2 = 1.463e-4 + 1e-5,
    };
    static const tolerance unit = {
        .relative = 0x1p-8,
        .o_size = 0x1p-8 + 2.5e-6,
        .gradients = 3e-2,
        .lse2 = 8e-6,
    };

    (void)state;
    for (int n = 0; n < 6; n++) {
        attention_form form = {n % 2 ? INVAR_NUMERICS_SM90 : INVAR_NUMERICS_IEEE,
                               INVAR_DTYPE_BF16,
                               4,
                               2,
                               64,
                               shapes[n / 2]};
        check_accuracy(&form, n % 2 ? &unit : &polynomial);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_accuracy__model_matches_finite_differences),
        cmocka_unit_test(test_attention_accuracy__f32_vs_f64),
        cmocka_unit_test(test_attention_accuracy__bf16_vs_f64),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
