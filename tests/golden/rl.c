/*
 * rl.c - the bits of advantages, gradients and metrics, on every machine and with every compiler.
 *
 * One digest covers 48 mixed options of estimators, losses and corrections; it was recorded once.
 * Negative control: for each mix, log-probs that differ by a millionth change the
 * digest.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/hash.h"
#include "tests/unit/engine/rl/batch.h"

enum { VARIANTS = 48 };

static fixture f;
static float dnow[TOKENS], dentropy[TOKENS], advantage[TOKENS], returns[TOKENS];

/* Returns the n-th mix of estimators, losses and corrections. */
static invar_rl_options options_of_variant(int n)
{
    invar_rl_options o = usual_options();

    o.estimator = (invar_estimator)(n % 6);
    o.loss = n % 11 == 10 ? INVAR_LOSS_SFT : n % 7 == 6 ? INVAR_LOSS_VALUE : INVAR_LOSS_POLICY;
    o.normalize_advantages = n % 5 == 0;
    o.std_normalization = n % 4 != 3;
    o.gamma = 0.99f;
    o.lambd = 0.95f;
    o.kl.reward_coef = n % 3 == 0 ? 0.1f : 0.0f;
    o.kl.type = (invar_kl)(n % 4);
    o.kl.use_loss = n % 2;
    o.kl.loss_coef = 0.07f;
    o.kl.unbiased = n % 8 > 4;
    o.clip.dual = n % 9 == 0 ? 1.5f : 0.0f;
    o.clip.value = 0.2f;
    o.entropy_coef = n % 3 == 1 ? 0.01f : 0.0f;
    o.per_token_loss = n / 2 % 2;
    o.constant_divisor = n % 13 == 0 ? 100.0f : 0.0f;
    o.opd_kl_coef = n % 6 == 5 || n % 10 == 0 ? 0.4f : 0.0f;
    o.opsm.use = n % 4 == 1;
    o.opsm.delta = 0.01f;
    o.tis.use = n % 5 == 1;
    o.tis.high = 1.2f;
    o.tis.low = 0.8f;
    o.tis.mode = n % 2 ? INVAR_TIS_MODE_ICEPOP : INVAR_TIS_MODE_TRUNCATE;
    o.mis.use = n % 5 > 2;
    o.mis.level = (invar_mis_level)(n % 3);
    o.mis.mode = (invar_mis_mode)(n / 3 % 3);
    o.mis.high = 1.3f;
    o.mis.rs.use = n % 2;
    o.mis.rs.level = (invar_mis_level)(n / 2 % 3);
    o.mis.rs.high = 1.6f;
    o.mis.rs.veto = 0.5f;
    o.mis.batch_normalize = n / 4 % 2;
    return o;
}

static void add_bytes(invar_digest *digest, const void *data, size_t bytes)
{
    invar_digest link;

    invar_hash_bytes(&link, data, bytes);
    invar_digest_chain(digest, &link);
}

static void add_step(invar_digest *digest, const invar_rl_options *options)
{
    size_t bytes = (size_t)f.tokens * sizeof(float), count;
    const invar_loss_metric *metrics;
    invar_loss *loss;

    assert_ok(invar_rl_advantages(advantage, returns, &f.batch, options));
    assert_ok(invar_loss_new(&loss, &f.batch, options, advantage, returns));
    assert_ok(invar_loss_run(loss, 0, SAMPLES, f.now, f.entropy, dnow, dentropy));
    assert_ok(invar_loss_metrics(&metrics, &count, loss));
    add_bytes(digest, advantage, bytes);
    add_bytes(digest, returns, bytes);
    add_bytes(digest, dnow, bytes);
    add_bytes(digest, dentropy, bytes);
    for (size_t i = 0; i < count; i++)
        add_bytes(digest, &metrics[i].value, sizeof(double));
    invar_loss_free(loss);
}

static void test_golden_rl__rev1(void **state)
{
    static const char golden[] = "04688e218cb8b6ed2e364b27c222cf09";
    invar_digest digest = {{0}};
    char text[INVAR_DIGEST_HEX_SIZE];

    (void)state;
    for (int n = 0; n < VARIANTS; n++) {
        invar_rl_options options = options_of_variant(n);
        fixture_init(&f, (uint64_t)(40 * n), n % 4 ? 50 : LONGEST);
        add_step(&digest, &options);
    }
    invar_digest_format(text, &digest);
    assert_string_equal(text, golden);
}

/* Returns the digest of the n-th mix. With `nudged`, log-probs differ by a millionth. */
static invar_digest digest_of_variant(int n, bool nudged)
{
    invar_rl_options options = options_of_variant(n);
    invar_digest digest = {{0}};

    fixture_init(&f, (uint64_t)(40 * n), n % 4 ? 50 : LONGEST);
    for (int64_t t = 0; t < f.tokens && nudged; t++)
        f.now[t] *= 1.0f + 0x1p-20f;
    add_step(&digest, &options);
    return digest;
}

static void test_golden_rl__nudged_log_probs_are_seen(void **state)
{
    (void)state;
    for (int n = 0; n < VARIANTS; n++) {
        invar_digest right = digest_of_variant(n, false), again = digest_of_variant(n, false);
        invar_digest nudged = digest_of_variant(n, true);
        assert_true(invar_digest_equal(&right, &again));
        if (invar_digest_equal(&right, &nudged))
            fail_msg("mix %d: nudged log-probs do not change the digest", n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_rl__rev1),
        cmocka_unit_test(test_golden_rl__nudged_log_probs_are_seen),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
