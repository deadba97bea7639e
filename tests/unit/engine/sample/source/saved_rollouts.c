/*
 * saved_rollouts.c - tests of rollouts in files: own files replace sampling, foreign ones are data.
 *
 * A run from its own files must have the chain and content of the run that sampled. Files of
 * another run make another run, whose log-prob differences are measured, not checked. Own files in
 * which anything was changed must be rejected.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/sample/rollout/file/rollout_file.h"
#include "tests/run.h"
#include "tests/unit/engine/config/config_of.h"

static int setup(void **state)
{
    (void)state;
    return run_setup(INVAR_TEST_WORK "/saved");
}

/* Returns the SQL for the number of steps in which the gauge is above 0. */
static const char *gauges_of(const char *name)
{
    static char sql[200];

    (void)snprintf(
        sql, sizeof sql,
        "SELECT count(*) FROM gauge g JOIN series n ON n.series = g.series WHERE n.name = "
        "'%s' AND g.value > 0",
        name);
    return sql;
}

/* Some groups are dropped, so that a rollout consumes more prompts than it keeps. */
static const run_pair sampled[] = {{"dynamic-sampling-filter", "nonzero_std"},
                                   {"over-sampling-batch-size", "5"},
                                   {"rollout-shuffle", "true"},
                                   {"task-size", "32"},
                                   {"num-rollout", "4"},
                                   {"lr", "0.01"},
                                   {NULL, NULL}};

static void test_saved_rollouts__files_stand_for_sampling(void **state)
{
    const run_pair write[] = {{"save-debug-rollout-data", run_path("files/{rollout_id}")},
                              {NULL, NULL}};
    const run_pair read[] = {{"load-debug-rollout-data", run_path("files/{rollout_id}")},
                             {NULL, NULL}};
    const run_pair some[] = {{"load-debug-rollout-data", run_path("files/{rollout_id}")},
                             {"debug-exit-after-rollout", "2"},
                             {"save", run_path("files.ckpt")},
                             {NULL, NULL}};
    const run_pair resume[] = {{"load", run_path("files.ckpt")}, {NULL, NULL}};
    run_digests one, repeated;

    (void)state;
    one = run_train_ok("write", sampled, write);
    assert_true(run_query_number("write", "SELECT max(value) FROM metrics WHERE name = "
                                          "'rollout/dynamic_filter/dropped'") > 0.0);
    repeated = run_train_ok("read", sampled, read);
    assert_true(run_same(&one, &repeated));
    assert_true(invar_digest_equal(&one.identity, &repeated.identity));
    // files advance the position in the data, so that sampling can continue after them
    assert_ok(run_train_pairs("part", sampled, some));
    repeated = run_train_ok("part", sampled, resume);
    assert_true(run_same(&one, &repeated));
}

static void test_saved_rollouts__rollouts_of_another_run_are_another_run(void **state)
{
    const run_pair lr[] = {
        {"lr", "0.02"}, {"load-debug-rollout-data", run_path("files/{rollout_id}")}, {NULL, NULL}};
    const run_pair no_files[] = {{"lr", "0.02"}, {NULL, NULL}};
    const run_pair mixed[] = {
        {"lr", "0.02"}, {"load-debug-rollout-data", run_path("mixed/{rollout_id}")}, {NULL, NULL}};
    static const char *const measured[] = {
        "train/logp_diff_max", "train/train_rollout_logprob_abs_diff", "train/train_rollout_kl"};
    run_digests foreign, plain;
    char *text = NULL;
    size_t bytes;

    (void)state;
    foreign = run_train_ok("foreign", sampled, lr);
    plain = run_train_ok("plain", sampled, no_files);
    assert_false(invar_digest_equal(&foreign.chain, &plain.chain));
    assert_false(invar_digest_equal(&foreign.identity, &plain.identity));
    // log-probs of other weights are not checked: differences are gauges, outside of the content
    assert_true(run_query_number("foreign",
                                 "SELECT count(*) FROM metrics WHERE name = "
                                 "'train/logp_diff_max'") ==
                1.0); // the initial weights are the same
    assert_true(run_query_number("foreign", "SELECT count(*) FROM metrics WHERE name LIKE "
                                            "'train/train_rollout_%'") == 2.0);
    for (size_t i = 0; i < sizeof measured / sizeof *measured; i++)
        assert_true(run_query_number("foreign", gauges_of(measured[i])) == 3.0);
    assert_true(
        run_query_number("foreign", "SELECT count(*) FROM samples WHERE diff IS NOT NULL") == 4.0);
    assert_true(run_query_number("plain", "SELECT count(*) FROM metrics WHERE name = "
                                          "'train/logp_diff_max'") == 4.0);
    // a run that has sampled cannot be resumed with rollouts of another run
    assert_ok(invar_held_folder_make(run_path("mixed")));
    assert_ok(invar_file_read(&text, &bytes, run_path("files/1"), 1 << 24));
    assert_ok(invar_file_write(run_path("mixed/1"), text, bytes));
    invar_free(text);
    {
        const run_pair begin[] = {{"lr", "0.02"},
                                  {"save", run_path("mixed.ckpt")},
                                  {"load", run_path("mixed.ckpt")},
                                  {"debug-exit-after-rollout", "1"},
                                  {NULL, NULL}};
        const run_pair load[] = {{"load", run_path("mixed.ckpt")},
                                 {"lr", "0.02"},
                                 {"load-debug-rollout-data", run_path("mixed/{rollout_id}")},
                                 {NULL, NULL}};
        assert_ok(run_train_pairs("mix", sampled, begin));
        assert_fails(run_train_pairs("mix", sampled, load), INVAR_E_INVALID, "of another run");
    }
    // file 0 names the run of all files, and it is missing
    assert_fails(run_train_pairs("mix2", sampled, mixed), INVAR_E_NOTFOUND, "mixed/0");
}

/* Writes the files of the run "write" in the format of version 0.1.0. */
static void write_version_1(const char *to)
{
    invar_rollout_file data;

    for (int i = 0; i < 4; i++) {
        char path[40];

        (void)snprintf(path, sizeof path, "files/%d", i);
        assert_ok(invar_rollout_file_read(&data, run_path(path)));
        data.header.policy = (invar_rollout_policy){NULL, NULL, {{0}}};
        (void)snprintf(path, sizeof path, "%s/%d", to, i);
        assert_ok(invar_rollout_file_write(run_path(path), &data.header, data.samples.items,
                                           data.samples.count));
        invar_rollout_file_release(&data);
    }
}

/* The files were sampled with another dtype, numerics or model: log-probs need not be equal. */
static void test_saved_rollouts__trains_off_policy_on_files_of_another_arithmetic(void **state)
{
    static const run_pair others[] = {
        {"dtype", "fp32"}, {"numerics", "sm90"}, {"norm-epsilon", "0.01"}};
    const char *files = run_path("files/{rollout_id}");

    (void)state;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const run_pair plain[] = {others[i], {"load-debug-rollout-data", files}, {NULL, NULL}};
        const run_pair tis[] = {
            others[i], {"load-debug-rollout-data", files}, {"use-tis", "true"}, {NULL, NULL}};
        char name[40];

        for (int k = 0; k < 2; k++) {
            (void)snprintf(name, sizeof name, "other.%zu.%d", i, k);
            assert_ok(run_train_pairs(name, sampled, k ? tis : plain));
            assert_true(run_query_number(name, gauges_of("train/logp_diff_max")) == 4.0);
            assert_true(run_query_number(name, "SELECT count(*) FROM metrics WHERE name = "
                                               "'train/logp_diff_max'") == 0.0);
            assert_true(run_query_number(
                            name, "SELECT count(*) FROM samples WHERE diff IS NOT NULL") == 0.0);
        }
    }
}

/* Files of version 1 do not name the arithmetic that sampled them: only those of a run with the
   same identity must have equal log-probs, and no other run stops in a step. */
static void test_saved_rollouts__takes_version_1_of_other_runs_as_off_policy(void **state)
{
    const run_pair load = {"load-debug-rollout-data", run_path("first/{rollout_id}")};
    const run_pair no_files[] = {load, {NULL, NULL}};
    const run_pair others[] = {{"dtype", "fp32"}, {"lr", "0.02"}};
    run_digests one, repeated;

    (void)state;
    assert_ok(invar_held_folder_make(run_path("first")));
    write_version_1("first");
    one = run_train_ok("sampled", sampled, NULL);
    repeated = run_train_ok("version.1", sampled, no_files);
    assert_true(run_same(&one, &repeated));
    assert_true(run_query_number("version.1", "SELECT count(*) FROM metrics WHERE name = "
                                              "'train/logp_diff_max'") == 4.0);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const run_pair read[] = {load, others[i], {NULL, NULL}};
        char name[40];

        (void)snprintf(name, sizeof name, "version.1.%s", others[i].key);
        assert_ok(run_train_pairs(name, sampled, read));
        // another learning rate: the first rollout has the same weights and differs by 0
        assert_true(run_query_number(name, gauges_of("train/logp_diff_max")) ==
                    (i == 0 ? 4.0 : 3.0));
        assert_true(run_query_number(name, "SELECT count(*) FROM samples WHERE diff IS NOT NULL") ==
                    0.0);
    }
}

/* Files with tokens outside of the vocabulary, or with an impossible draw, are rejected. */
static void test_saved_rollouts__files_that_do_not_fit(void **state)
{
    const run_pair bad[] = {{"load-debug-rollout-data", run_path("bad/{rollout_id}")},
                            {"debug-exit-after-rollout", "1"},
                            {NULL, NULL}};
    invar_rollout_file data;

    (void)state;
    assert_ok(invar_rollout_file_read(&data, run_path("files/0")));
    data.samples.items[1].tokens[0] = 99999;
    assert_ok(invar_rollout_file_write(run_path("bad/0"), &data.header, data.samples.items,
                                       data.samples.count));
    assert_fails(run_train_pairs("bad.run", sampled, bad), INVAR_E_INVALID,
                 "does not fit the model");
    data.samples.items[1].tokens[0] = 1;
    data.samples.items[1].draw_index = UINT32_MAX; // more prompts than dynamic sampling may consume
    assert_ok(invar_rollout_file_write(run_path("bad/0"), &data.header, data.samples.items,
                                       data.samples.count));
    assert_fails(run_train_pairs("bad.run", sampled, bad), INVAR_E_CORRUPT, "never makes");
    invar_rollout_file_release(&data);
}

/*
 * Writes the first rollout with another count of rejected groups, and trains from the file. The
 * rollout belongs to the run with the learning rate 0.01.
 */
static invar_status train_with_filtered(const char *name, const char *lr, bool filters,
                                        int64_t filtered)
{
    const run_pair read[] = {{"load-debug-rollout-data", run_path("filtered/{rollout_id}")},
                             {"debug-exit-after-rollout", "1"},
                             {"lr", lr},
                             {NULL, NULL}};
    invar_rollout_file data;

    assert_ok(invar_rollout_file_read(&data, run_path("files/0")));
    data.header.filters = filters;
    data.header.filtered = filtered;
    assert_ok(invar_rollout_file_write(run_path("filtered/0"), &data.header, data.samples.items,
                                       data.samples.count));
    invar_rollout_file_release(&data);
    return run_train_pairs(name, sampled, read);
}

static void test_saved_rollouts__a_file_without_filtered_groups_gives_no_count(void **state)
{
    static const char count[] = "SELECT count(*) FROM metrics WHERE step = 0 AND name = "
                                "'rollout/dynamic_filter/dropped'";

    (void)state;
    assert_true(run_query_number("write", count) == 1.0);
    assert_ok(
        train_with_filtered("filtered.old", "0.01", false, 0)); // like the files of version 0.1.0
    assert_true(run_query_number("filtered.old", count) == 0.0);
    assert_fails(train_with_filtered("filtered.new", "0.01", true, 1000), INVAR_E_CORRUPT,
                 "has filtered_groups 1000");
    assert_ok(train_with_filtered("filtered.foreign.old", "0.02", false, 0));
    assert_true(run_query_number("filtered.foreign.old", count) == 0.0);
}

static void test_saved_rollouts__takes_filtered_groups_from_files_of_another_run(void **state)
{
    static const char dropped[] = "SELECT value FROM metrics WHERE step = 0 AND name = "
                                  "'rollout/dynamic_filter/dropped'";

    (void)state;
    assert_ok(train_with_filtered("filtered.foreign", "0.02", true, 1000));
    assert_true(run_query_number("filtered.foreign", dropped) == 1000.0);
}

/* ---- own rollouts that were changed ---------------------------------------------------------- */

typedef void (*change)(invar_rollout_file *data);

static void change_reward(invar_rollout_file *d)
{
    d->samples.items[2].reward += 0.25;
}
static void change_label(invar_rollout_file *d)
{
    d->samples.items[2].data.label = "7";
}
static void change_parts(invar_rollout_file *d)
{
    assert_ok(invar_reward_parts_add(&d->samples.items[2].parts, "a", 1, 1, "test"));
}
static void change_prompt(invar_rollout_file *d)
{
    d->samples.items[2].data.line++;
}
static void change_text(invar_rollout_file *d)
{
    d->samples.items[2].data.prompt = "1,2=";
}
static void change_response(invar_rollout_file *d)
{
    d->samples.items[2].response[0] ^= 1;
}
static void change_metadata(invar_rollout_file *d)
{
    d->samples.items[2].data.metadata = "{\"a\":1}";
}
static void change_token(invar_rollout_file *d)
{
    d->samples.items[2].tokens[0] ^= 1;
}
static void change_mask(invar_rollout_file *d)
{
    d->samples.items[2].mask[0] = 0;
}
static void change_removed(invar_rollout_file *d)
{
    d->samples.items[2].is_masked_out = true;
}
static void change_draw(invar_rollout_file *d)
{
    d->samples.items[3].draw_index++;
}
static void change_hash(invar_rollout_file *d)
{
    d->samples.items[2].data.hash.bytes[0] ^= 1;
}
static void change_route_size(invar_rollout_file *d)
{
    d->samples.items[2].route_size = 2;
}
static void change_dtype(invar_rollout_file *d)
{
    d->header.policy.dtype = "fp32";
}
static void change_temperature(invar_rollout_file *d)
{
    d->header.sampling.temperature = 0.5f;
}
static void change_seed(invar_rollout_file *d)
{
    d->header.sampling.seed++;
}
static void change_top_k(invar_rollout_file *d)
{
    d->header.sampling.top_k = 3;
}
static void change_version(invar_rollout_file *d)
{
    d->header.weights++;
}
static void change_weights(invar_rollout_file *d)
{
    d->header.weights_hash.bytes[0] ^= 1;
}
static void change_number(invar_rollout_file *d)
{
    d->header.rollout++;
}

static void change_finish(invar_rollout_file *d)
{
    invar_finish *finish = &d->samples.items[2].finish;

    *finish = *finish == INVAR_FINISH_STOP ? INVAR_FINISH_LENGTH : INVAR_FINISH_STOP;
}

static void test_saved_rollouts__own_rollouts_that_were_changed(void **state)
{
    static const struct {
        change make;
        const char *member;
    } cases[] = {
        {change_reward, "\"reward\" of sample"},
        {change_parts, "\"parts\" of sample"},
        {change_label, "\"label\" of sample"},
        {change_prompt, "\"prompt\" of sample"},
        {change_text, "\"prompt_text\" of sample"},
        {change_response, "\"response\" of sample"},
        {change_metadata, "\"metadata\" of sample"},
        {change_token, "\"tokens\" of sample"},
        {change_mask, "\"mask\" of sample"},
        {change_removed, "\"removed\" of sample"},
        {change_draw, "\"draw\" of sample"},
        {change_hash, "\"prompt_hash\" of sample"},
        {change_finish, "\"finish\" of sample"},
        {change_route_size, "\"route_size\" of sample"},
        {change_dtype, "\"dtype, numerics or model\""},
        {change_temperature, "\"weights_hash\""}, // another temperature counts as another policy
        {change_seed, "\"seed\""},
        {change_top_k, "\"top_k\""},
        {change_version, "\"weights\""},
        {change_weights, "\"weights_hash\""},
        {change_number, "\"rollout\""},
    };
    const run_pair read[] = {{"load-debug-rollout-data", run_path("changed/{rollout_id}")},
                             {"debug-exit-after-rollout", "1"},
                             {NULL, NULL}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        invar_rollout_file data;

        assert_ok(invar_rollout_file_read(&data, run_path("files/0")));
        cases[i].make(&data);
        assert_ok(invar_rollout_file_write(run_path("changed/0"), &data.header, data.samples.items,
                                           data.samples.count));
        invar_rollout_file_release(&data);
        assert_fails(run_train_pairs("changed.run", sampled, read), INVAR_E_INVALID,
                     cases[i].member);
    }
}

/* Moves the first group to the end, where it has a draw that the loader would skip. */
static void replace_first_group(invar_rollout_file *d)
{
    invar_rl_sample *items = d->samples.items;

    for (int i = 0; i < 2; i++) {
        invar_rl_sample first = items[i];
        items[i] = items[i + 2];
        items[i + 2] = first;
        items[i + 2].index = items[i].index + 2;
        items[i + 2].group = items[i].group + 1;
        items[i + 2].draw_index = items[i].draw_index;
    }
}

static void test_saved_rollouts__no_sample_is_skipped(void **state)
{
    const run_pair write[] = {{"save-debug-rollout-data", run_path("plain/{rollout_id}")},
                              {NULL, NULL}};
    const run_pair read[] = {{"load-debug-rollout-data", run_path("replaced/{rollout_id}")},
                             {"debug-exit-after-rollout", "1"},
                             {NULL, NULL}};
    invar_rollout_file data;

    (void)state;
    (void)run_train_ok("plain.run", write, NULL);
    assert_ok(invar_rollout_file_read(&data, run_path("plain/0")));
    assert_int_equal(data.samples.count, 4);
    replace_first_group(&data);
    assert_ok(invar_rollout_file_write(run_path("replaced/0"), &data.header, data.samples.items,
                                       data.samples.count));
    invar_rollout_file_release(&data);
    assert_fails(run_train_pairs("replaced.run", read, NULL), INVAR_E_INVALID,
                 "has a draw of an earlier one");
}

/* ---- foreign rollouts ------------------------------------------------------------------------ */

static const run_pair other_lr[] = {{"dynamic-sampling-filter", "nonzero_std"},
                                    {"over-sampling-batch-size", "5"},
                                    {"rollout-shuffle", "true"},
                                    {"task-size", "32"},
                                    {"num-rollout", "4"},
                                    {"lr", "0.02"},
                                    {NULL, NULL}};

/* Training from files allocates no KV cache; control: sampling fails with this impossible size. */
static void test_saved_rollouts__files_need_no_rollout_engine(void **state)
{
    const run_pair pages = {"kv-pages", "1000000000"}, size = {"page-size", "4096"};
    const run_pair from[] = {{"load-debug-rollout-data", run_path("files/{rollout_id}")},
                             {"debug-train-only", "true"},
                             pages,
                             size,
                             {NULL, NULL}};
    const run_pair sample[] = {pages, size, {NULL, NULL}};
    run_digests one, repeated;

    (void)state;
    one = run_digests_of("write");
    repeated = run_train_ok("no.engine", sampled, from);
    assert_true(run_same(&one, &repeated));
    assert_int_equal(run_train_pairs("engine", sampled, sample), INVAR_E_NOMEM);
}

/* The identity covers the content of foreign files, so that equal identities have equal chains. */
static void test_saved_rollouts__foreign_rollouts_belong_to_the_identity(void **state)
{
    const run_pair same[] = {{"load-debug-rollout-data", run_path("files/{rollout_id}")},
                             {"debug-train-only", "true"},
                             {NULL, NULL}};
    const run_pair edited[] = {{"load-debug-rollout-data", run_path("edited/{rollout_id}")},
                               {NULL, NULL}};
    run_digests foreign, repeated, other;

    (void)state;
    foreign = run_digests_of("foreign");
    repeated = run_train_ok("foreign.again", other_lr, same);
    assert_true(run_same(&foreign, &repeated));
    assert_true(invar_digest_equal(&foreign.identity, &repeated.identity));
    for (int i = 0; i < 4; i++) {
        char from[16], to[16];
        invar_rollout_file data;

        (void)snprintf(from, sizeof from, "files/%d", i);
        (void)snprintf(to, sizeof to, "edited/%d", i);
        assert_ok(invar_rollout_file_read(&data, run_path(from)));
        if (i == 3) // the last rollout counts as well
            data.samples.items[0].reward += 1.0;
        assert_ok(invar_rollout_file_write(run_path(to), &data.header, data.samples.items,
                                           data.samples.count));
        invar_rollout_file_release(&data);
    }
    other = run_train_ok("foreign.edited", other_lr, edited);
    assert_false(invar_digest_equal(&foreign.chain, &other.chain));
    assert_false(invar_digest_equal(&foreign.identity, &other.identity));
}

/*
 * Old log-probs are the actor's, or with use-rollout-logprobs those of the file. TIS and MIS must
 * change the run.
 */
static void test_saved_rollouts__importance_sampling_of_foreign_rollouts(void **state)
{
    static const char clipped[] =
        "SELECT count(*) FROM metrics WHERE name = 'train/tis_clipfrac' AND value > 0";
    static const char off[] =
        "SELECT count(*) FROM metrics WHERE name = 'train/ppo_kl' AND value <> 0";
    const run_pair files = {"load-debug-rollout-data", run_path("files/{rollout_id}")};
    const run_pair tis[] = {files, {"use-tis", "true"}, {"tis-clip", "1"}, {NULL, NULL}};
    const run_pair mis[] = {
        files, {"use-mis", "true"}, {"mis-mode", "mask"}, {"mis-upper-bound", "1"}, {NULL, NULL}};
    const run_pair file_logprobs[] = {files, {"use-rollout-logprobs", "true"}, {NULL, NULL}};
    run_digests plain, with_tis, with_mis, with_file_logprobs;

    (void)state;
    plain = run_digests_of("foreign");
    with_tis = run_train_ok("foreign.tis", other_lr, tis);
    with_mis = run_train_ok("foreign.mis", other_lr, mis);
    with_file_logprobs = run_train_ok("foreign.theirs", other_lr, file_logprobs);
    assert_true(run_query_number("foreign.tis", clipped) > 0.0);
    assert_true(run_query_number("foreign", off) ==
                0.0); // old log-probs have the weights that are trained
    assert_true(run_query_number("foreign.theirs", off) == 3.0);
    assert_true(run_query_number("foreign.theirs", gauges_of("train/train_rollout_kl")) == 0.0);
    assert_false(invar_digest_equal(&plain.chain, &with_tis.chain));
    assert_false(invar_digest_equal(&plain.chain, &with_mis.chain));
    assert_false(invar_digest_equal(&plain.chain, &with_file_logprobs.chain));
}

typedef struct pair_list {
    invar_ledger_pair pairs[256];
    char text[256][2][128];
    size_t count;
} pair_list;

static invar_status store_pair(void *payload, const char *const *columns,
                               const invar_ledger_value *values, int count)
{
    pair_list *list = payload;
    char(*text)[128] = list->text[list->count];

    (void)columns;
    if (!values)
        return INVAR_OK;
    assert_int_equal(count, 2);
    for (int i = 0; i < 2; i++)
        (void)snprintf(text[i], sizeof text[i], "%.*s", (int)values[i].bytes,
                       (const char *)values[i].data);
    list->pairs[list->count++] = (invar_ledger_pair){text[0], text[1]};
    return INVAR_OK;
}

/* Own files in a run with use-tis, as older versions wrote them, are rejected. */
static void test_saved_rollouts__refuses_importance_sampling_of_own_rollouts(void **state)
{
    static pair_list list;
    const run_pair tis[] = {{"load-debug-rollout-data", run_path("tis/{rollout_id}")},
                            {"use-tis", "true"},
                            {"tis-clip", "1"},
                            {NULL, NULL}};
    invar_rollout_file data;

    (void)state;
    run_select("foreign.tis", "SELECT key, value FROM identity WHERE key <> 'rollouts hash'",
               store_pair, &list);
    assert_ok(invar_rollout_file_read(&data, run_path("files/0")));
    assert_ok(invar_ledger_identity(&data.header.run, list.pairs, list.count));
    assert_ok(invar_rollout_file_write(run_path("tis/0"), &data.header, data.samples.items,
                                       data.samples.count));
    invar_rollout_file_release(&data);
    assert_fails(run_train_pairs("tis.own", other_lr, tis), INVAR_E_INVALID,
                 "'use-tis' would be ignored: ");
}

/* ---- values that are not measured ------------------------------------------------------------ */

static void test_saved_rollouts__what_was_not_compared_is_absent(void **state)
{
    static const char *const names[] = {
        "train/logp_diff_max", "train/train_rollout_logprob_abs_diff", "train/train_rollout_kl"};
    const run_pair twice[] = {{"num-steps-per-rollout", "2"}, {"lr", "0.01"}, {NULL, NULL}};
    const run_pair off[] = {{"check-logprobs", "false"}, {NULL, NULL}};
    const run_pair only[] = {
        {"check-logprobs", "false"}, {"debug-rollout-only", "true"}, {NULL, NULL}};
    const double with[] = {4.0, 4.0, 4.0}, without[] = {2.0, 0.0, 0.0};
    invar_recipe *recipe = run_recipe(run_path("unchecked.only"), only, NULL);
    invar_train_summary summary;
    run_digests checked, unchecked;
    char sql[128];

    (void)state;
    checked = run_train_ok("checked", twice, NULL);
    unchecked = run_train_ok("unchecked", twice, off);
    assert_true(invar_digest_equal(&checked.chain, &unchecked.chain));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        (void)snprintf(sql, sizeof sql, "SELECT count(*) FROM metrics WHERE name = '%s'", names[i]);
        assert_true(run_query_number("checked", sql) == with[i]);
        // the training forward of each rollout's first step is still compared
        assert_true(run_query_number("unchecked", sql) == without[i]);
    }
    assert_true(run_query_number("checked", "SELECT count(*) FROM samples WHERE diff = 0") == 8.0);
    assert_true(run_query_number("unchecked", "SELECT count(*) FROM samples WHERE diff = 0") ==
                4.0);
    assert_ok(invar_train(&summary, config_of(recipe), &(invar_train_options){.until = -1}));
    assert_int_equal(summary.steps, 2);
    assert_int_equal(summary.compared, 0);
    invar_recipe_free(recipe);
}

/* A file without log-probs, as other programs write it, is not compared with anything. */
static void test_saved_rollouts__without_logprobs_nothing_is_compared(void **state)
{
    const run_pair bare[] = {{"load-debug-rollout-data", run_path("bare/{rollout_id}")},
                             {"debug-exit-after-rollout", "1"},
                             {NULL, NULL}};
    float *logp[64];
    invar_rollout_file data;

    (void)state;
    assert_ok(invar_rollout_file_read(&data, run_path("files/0")));
    assert_true(data.samples.count <= 64);
    data.header.run.bytes[0] ^= 1;
    for (int64_t i = 0; i < data.samples.count; i++) {
        logp[i] = data.samples.items[i].logp;
        data.samples.items[i].logp = NULL;
    }
    assert_ok(invar_rollout_file_write(run_path("bare/0"), &data.header, data.samples.items,
                                       data.samples.count));
    for (int64_t i = 0; i < data.samples.count; i++)
        data.samples.items[i].logp = logp[i];
    invar_rollout_file_release(&data);
    assert_ok(run_train_pairs("bare.run", sampled, bare));
    assert_true(run_query_number("bare.run",
                                 "SELECT count(*) FROM metrics WHERE name = 'train/loss'") == 1.0);
    assert_true(run_query_number("bare.run",
                                 "SELECT count(*) FROM metrics WHERE name GLOB "
                                 "'train/logp_diff_*' OR name = 'rollout/rollout_log_probs'") ==
                0.0);
    assert_true(
        run_query_number("bare.run", "SELECT count(*) FROM samples WHERE diff IS NOT NULL") == 0.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_saved_rollouts__files_stand_for_sampling),
        cmocka_unit_test(test_saved_rollouts__rollouts_of_another_run_are_another_run),
        cmocka_unit_test(test_saved_rollouts__trains_off_policy_on_files_of_another_arithmetic),
        cmocka_unit_test(test_saved_rollouts__takes_version_1_of_other_runs_as_off_policy),
        cmocka_unit_test(test_saved_rollouts__files_that_do_not_fit),
        cmocka_unit_test(test_saved_rollouts__a_file_without_filtered_groups_gives_no_count),
        cmocka_unit_test(test_saved_rollouts__takes_filtered_groups_from_files_of_another_run),
        cmocka_unit_test(test_saved_rollouts__own_rollouts_that_were_changed),
        cmocka_unit_test(test_saved_rollouts__no_sample_is_skipped),
        cmocka_unit_test(test_saved_rollouts__files_need_no_rollout_engine),
        cmocka_unit_test(test_saved_rollouts__foreign_rollouts_belong_to_the_identity),
        cmocka_unit_test(test_saved_rollouts__importance_sampling_of_foreign_rollouts),
        cmocka_unit_test(test_saved_rollouts__refuses_importance_sampling_of_own_rollouts),
        cmocka_unit_test(test_saved_rollouts__what_was_not_compared_is_absent),
        cmocka_unit_test(test_saved_rollouts__without_logprobs_nothing_is_compared),
    };

    return cmocka_run_group_tests(tests, setup, run_teardown);
}
