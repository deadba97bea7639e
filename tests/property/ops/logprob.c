/*
 * logprob.c - a token's log-prob, entropy and gradient depend on its own row only.
 *
 * Results are compared with those of one batch on one thread: for micro-batches of several sizes,
 * for neighbors and vocabulary padding of NaN, infinite and huge values, and for all thread
 * counts, CPU paths and numerics. Controls: a reversed vocabulary changes the sums, and an op whose
 * rows depend on other rows (row_leak.h) changes every result.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "tests/device/row_leak.h"
#include "tests/ops.h"

typedef struct tokens {
    invar_logprob_fwd_args fwd;
    invar_logprob_bwd_args bwd;
} tokens;

static invar_tensor new_vector(invar_dtype dtype, int64_t n)
{
    return invar_test_tensor(invar_tensor_1d(NULL, dtype, n));
}

/* Makes new outputs for `count` rows of the inputs of `like`, beginning with row `first`. */
static tokens tokens_of(const tokens *like, int64_t first, int64_t count)
{
    tokens t = *like;

    t.fwd.logits = invar_tensor_rows(&like->fwd.logits, first, count);
    t.fwd.targets = invar_tensor_rows(&like->fwd.targets, first, count);
    t.bwd.dlogp = invar_tensor_rows(&like->bwd.dlogp, first, count);
    t.bwd.dentropy = invar_tensor_rows(&like->bwd.dentropy, first, count);
    t.fwd.logp = new_vector(INVAR_DTYPE_F32, count);
    t.bwd.entropy = t.fwd.entropy = new_vector(INVAR_DTYPE_F32, count);
    t.bwd.max = t.fwd.max = new_vector(INVAR_DTYPE_F32, count);
    t.bwd.logsum = t.fwd.logsum = new_vector(INVAR_DTYPE_F32, count);
    t.bwd.logits = t.fwd.logits;
    t.bwd.targets = t.fwd.targets;
    t.bwd.dlogits = invar_test_tensor(
        invar_tensor_2d(NULL, like->bwd.dlogits.dtype, count, like->fwd.logits.shape[1]));
    return t;
}

static void outputs_free(tokens *t)
{
    invar_test_free(&t->fwd.logp, &t->fwd.entropy, &t->fwd.max, &t->fwd.logsum, &t->bwd.dlogits);
}

/* Makes inputs. invar_test_strided leaves NaN between the rows of logits as padding. */
static tokens inputs_new(int64_t count, int64_t vocabulary, invar_dtype dlogits)
{
    tokens t = {0};

    t.fwd.logits =
        invar_test_strided(invar_tensor_2d(NULL, INVAR_DTYPE_F32, count, vocabulary), 64);
    t.fwd.targets = new_vector(INVAR_DTYPE_I32, count);
    t.bwd.dlogp = new_vector(INVAR_DTYPE_F32, count);
    t.bwd.dentropy = new_vector(INVAR_DTYPE_F32, count);
    t.bwd.dlogits.dtype = dlogits;
    t.fwd.temperature = t.bwd.temperature = 0.8f;
    invar_test_fill_normal(&t.fwd.logits, 1, 4.0f);
    invar_test_fill_index(&t.fwd.targets, 2, (int32_t)vocabulary);
    invar_test_fill_normal(&t.bwd.dlogp, 3, 1.0f);
    invar_test_fill_normal(&t.bwd.dentropy, 4, 1.0f);
    return t;
}

static void inputs_free(tokens *t)
{
    invar_test_free(&t->fwd.logits, &t->fwd.targets, &t->bwd.dlogp, &t->bwd.dentropy);
}

static void run_logprob(const invar_device *dev, const tokens *t)
{
    assert_ok(invar_logprob_fwd(dev, &t->fwd));
    assert_ok(invar_logprob_bwd(dev, &t->bwd));
}

enum { RESULTS = 5 };

/*
 * Compares the rows of `whole` from `first` on with those of `part`. If `changed` is NULL, asserts
 * that they are equal; otherwise counts the differing tensors of each result.
 */
static void compare_rows(const tokens *whole, int64_t first, const tokens *part,
                         int changed[RESULTS])
{
    const invar_tensor *a[RESULTS] = {&whole->fwd.logp, &whole->fwd.entropy, &whole->fwd.max,
                                      &whole->fwd.logsum, &whole->bwd.dlogits};
    const invar_tensor *b[RESULTS] = {&part->fwd.logp, &part->fwd.entropy, &part->fwd.max,
                                      &part->fwd.logsum, &part->bwd.dlogits};
    static const char *const names[RESULTS] = {"logp", "entropy", "max", "logsum", "dlogits"};

    for (int i = 0; i < RESULTS; i++) {
        invar_tensor rows = invar_tensor_rows(a[i], first, b[i]->shape[0]);
        if (changed)
            changed[i] += invar_tensors_differ(b[i], &rows);
        else
            invar_assert_bits_tensor(b[i], &rows, names[i]);
    }
}

static const invar_dtype storage[] = {INVAR_DTYPE_F32, INVAR_DTYPE_BF16};

/* Compares micro-batches of 1, 3, 7, ... tokens with the whole batch. */
static void compare_micro_batches(const invar_device *dev, int64_t count, int64_t vocabulary,
                                  invar_dtype dlogits, int changed[RESULTS])
{
    tokens inputs = inputs_new(count, vocabulary, dlogits);
    tokens whole = tokens_of(&inputs, 0, count);

    run_logprob(dev, &whole);
    for (int64_t size = 1; size < count; size += 1 + size)
        for (int64_t first = 0; first + size <= count; first += size) {
            tokens part = tokens_of(&inputs, first, size);
            run_logprob(dev, &part);
            compare_rows(&whole, first, &part, changed);
            outputs_free(&part);
        }
    outputs_free(&whole);
    inputs_free(&inputs);
}

static void test_logprob__token_alone_equals_token_in_batch(void **state)
{
    static const int64_t sizes[] = {1, 100, 256, 300, 2000, 151936};
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    for (int i = 0; i < 12; i++)
        compare_micro_batches(&dev, invar_test_count(i < 10 ? 7 : 3, 40), sizes[i / 2],
                              storage[i % 2], NULL);
    invar_test_device_release(&dev);
}

/* Compares the token in the middle of a batch of `poison` with the same token alone. */
static void compare_poisoned(const invar_device *dev, float poison, invar_dtype dlogits,
                             int changed[RESULTS])
{
    const int64_t count = 5, middle = 2;
    tokens inputs = inputs_new(count, 600, dlogits);
    tokens alone = tokens_of(&inputs, middle, 1), whole = tokens_of(&inputs, 0, count);

    for (int64_t t = 0; t < count; t++) {
        invar_tensor row = invar_tensor_rows(&inputs.fwd.logits, t, 1);
        if (t != middle)
            invar_test_fill(&row, poison);
    }
    run_logprob(dev, &alone);
    run_logprob(dev, &whole);
    compare_rows(&whole, middle, &alone, changed);
    outputs_free(&alone);
    outputs_free(&whole);
    inputs_free(&inputs);
}

static const float poison[] = {NAN, INFINITY, -3e38f};

static void test_logprob__neighbors_change_nothing(void **state)
{
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 2);
    for (int i = 0; i < 6; i++)
        compare_poisoned(&dev, poison[i / 2], storage[i % 2], NULL);
    invar_test_device_release(&dev);
}

/* Control: rows that depend on other rows differ from the same rows alone, in every result. */
static void test_logprob__control_rows_that_depend_on_others_are_seen(void **state)
{
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 2);
    dev.backend = row_leak_backend(dev.backend, INVAR_OP_LOGPROB_FWD,
                                   offsetof(invar_logprob_fwd_args, logits));
    for (int i = 0; i < 8; i++) {
        int changed[RESULTS] = {0};
        if (i < 2)
            compare_micro_batches(&dev, 7, 300, storage[i % 2], changed);
        else
            compare_poisoned(&dev, poison[i / 2 - 1], storage[i % 2], changed);
        for (int j = 0; j < RESULTS; j++)
            assert_true(changed[j] > 0);
    }
    invar_test_device_release(&dev);
}

static void test_logprob__threads_paths_and_numerics_change_nothing(void **state)
{
    static const int threads[] = {1, 2, 3, 8};
    const int64_t count = 19;

    (void)state;
    for (int i = 0; i < 2; i++) {
        tokens inputs = inputs_new(count, 3000, storage[i]);
        tokens expected = tokens_of(&inputs, 0, count);
        invar_device dev;

        invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
        run_logprob(&dev, &expected);
        invar_test_device_release(&dev);
        for (int j = 0; j < 4 * 2 * 2; j++) {
            tokens got = tokens_of(&inputs, 0, count);
            invar_test_device_init(&dev, (invar_numerics)(j % 2), (invar_cpu_path)(j / 2 % 2),
                                   threads[j / 4]);
            run_logprob(&dev, &got);
            compare_rows(&expected, 0, &got, NULL);
            outputs_free(&got);
            invar_test_device_release(&dev);
        }
        outputs_free(&expected);
        inputs_free(&inputs);
    }
}

/* Control: the same logits in reversed vocabulary order give other sums. */
static void test_logprob__control_reordered_vocabulary_is_seen(void **state)
{
    const int64_t count = 19, vocabulary = 3000;
    tokens inputs = inputs_new(count, vocabulary, INVAR_DTYPE_F32);
    tokens forwards = tokens_of(&inputs, 0, count), backwards;
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    run_logprob(&dev, &forwards);
    for (int64_t t = 0; t < count; t++) {
        int32_t *target = (int32_t *)inputs.fwd.targets.data + t;
        *target = (int32_t)vocabulary - 1 - *target;
        for (int64_t v = 0; v < vocabulary / 2; v++) {
            float left = invar_test_get(&inputs.fwd.logits, t, v);
            float right = invar_test_get(&inputs.fwd.logits, t, vocabulary - 1 - v);
            invar_test_set(&inputs.fwd.logits, t, v, right);
            invar_test_set(&inputs.fwd.logits, t, vocabulary - 1 - v, left);
        }
    }
    backwards = tokens_of(&inputs, 0, count);
    run_logprob(&dev, &backwards);
    invar_assert_bits_tensor(&backwards.fwd.max, &forwards.fwd.max, "max"); // in any order
    assert_true(invar_tensors_differ(&backwards.fwd.logsum, &forwards.fwd.logsum));
    assert_true(invar_tensors_differ(&backwards.fwd.entropy, &forwards.fwd.entropy));
    outputs_free(&forwards);
    outputs_free(&backwards);
    inputs_free(&inputs);
    invar_test_device_release(&dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logprob__token_alone_equals_token_in_batch),
        cmocka_unit_test(test_logprob__neighbors_change_nothing),
        cmocka_unit_test(test_logprob__control_rows_that_depend_on_others_are_seen),
        cmocka_unit_test(test_logprob__threads_paths_and_numerics_change_nothing),
        cmocka_unit_test(test_logprob__control_reordered_vocabulary_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
