/*
 * power_loss.c - power goes while a ledger and its checkpoints are written; nothing durable is
 * lost.
 *
 * A run of a few steps, with a checkpoint after each, is recorded once by a simulated disk
 * (power_disk.h). Then power goes after the n-th operation, for n = 1, 2, ..., with different
 * losses of unsynced writes. The files that remain must open and verify: every step that a
 * checkpoint or the end of the run has acknowledged exists, later steps are complete or absent, and
 * every step has its chain. The latest checkpoint is the last acknowledged one or a later one,
 * every listed checkpoint is complete, and the ledger has its steps. The run resumes from there.
 * Before the first acknowledgement an error that names the ledger is accepted, too.
 *
 * Negative controls: disks that ignore syncs, of all files or of folders only, must be found.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/fault/engine/power_disk.h"

#include <inttypes.h>

#include "base/file.h"
#include "tests/fault/engine/checkpoint_scenario.h"

enum { ROWS = 40, KEEP = 2, LAST = 4 };

static char folder[] = INVAR_TEST_WORK "/power-XXXXXX";
static ckpt_data data;
static invar_digest hashes[LAST + 1]; /* hashes of the checkpoints, by step */

static const char *path_in(const char *dir, const char *name)
{
    static char paths[4][700];
    static int last;

    last = (last + 1) % 4;
    snprintf(paths[last], sizeof paths[last], "%.600s/%s", dir, name);
    return paths[last];
}

/* ---- the run --------------------------------------------------------------------------------- */

static invar_status write_step(const char *dir, invar_ledger *ledger, int64_t step, bool in_thread)
{
    const invar_checkpoint_options options = {.ledger = ledger, .keep = KEEP};

    INVAR_TRY(scenario_append(ledger, step));
    ckpt_make(&data, step, ROWS);
    INVAR_TRY(ckpt_write(&hashes[step], path_in(dir, "save"), &data, &options, in_thread));
    disk_acknowledge(step);
    return INVAR_OK;
}

/*
 * Records the run. The last checkpoint is written twice, so that one is replaced; a step without a
 * checkpoint follows it.
 */
static void make_run(const char *dir)
{
    invar_ledger *ledger;

    assert_ok(invar_held_folder_make(dir));
    disk_record(dir);
    assert_ok(invar_ledger_open(&ledger, path_in(disk.folder, "ledger.db"),
                                &(invar_ledger_options){.create = true}));
    assert_ok(scenario_begin(ledger));
    assert_ok(scenario_define(ledger));
    for (int64_t step = 0; step <= LAST; step++)
        assert_ok(write_step(disk.folder, ledger, step, step % 2));
    assert_ok(ckpt_write(NULL, path_in(disk.folder, "save"), &data,
                         &(invar_checkpoint_options){.ledger = ledger, .keep = KEEP}, false));
    assert_ok(scenario_append(ledger, LAST + 1));
    assert_ok(invar_ledger_finish(ledger, 0, "done"));
    disk_acknowledge(LAST + 1);
    invar_ledger_close(ledger);
    disk.recording = false;
}

/* ---- checks after a loss --------------------------------------------------------------------- */

/* Returns the last value that was acknowledged before operation n; -1 if there is none. */
static int64_t acknowledged_before(int n)
{
    for (int i = n - 1; i >= 0; i--)
        if (disk.ops[i].kind == DISK_ACKNOWLEDGED)
            return disk.ops[i].value;
    return -1;
}

/* Returns the message of a violated property, with the last error, in a static buffer. */
static const char *describe_failure(const char *what)
{
    static char text[700];

    snprintf(text, sizeof text, "%s: %.600s", what, invar_error_last()->message);
    return text;
}

/*
 * Checks that all steps up to `last` exist and that every step has its chain. Returns NULL, or a
 * description of the violation, like all check functions below.
 */
static const char *check_steps(invar_ledger *ledger, int64_t last)
{
    invar_ledger_verify_result verdict;
    invar_ledger_summary summary = {.last_step = -1};
    invar_digest chain, expected;

    if (invar_ledger_verify(&verdict, ledger, NULL, NULL) != INVAR_OK || verdict.problems != 0)
        return "the ledger does not verify";
    if (invar_ledger_find(&summary, ledger, NULL) != INVAR_OK)
        return last >= 0 ? "the run is lost" : NULL;
    if (summary.last_step < last)
        return "a step that was acknowledged is lost";
    for (int64_t step = 0; step <= summary.last_step; step++) {
        expected = scenario_chain(step);
        if (invar_ledger_chain_at(&chain, ledger, summary.run, step) != INVAR_OK ||
            !invar_digest_equal(&chain, &expected))
            return "a step has another chain";
    }
    return NULL;
}

static const char *check_checkpoint(const char *save, int64_t step)
{
    invar_checkpoint *c;
    invar_digest hash;

    if (invar_checkpoint_open(&c, save, &(invar_checkpoint_open_options){.step = step}) != INVAR_OK)
        return describe_failure("a checkpoint is not whole");
    invar_checkpoint_hash(&hash, c);
    invar_checkpoint_close(c);
    return step > LAST || !invar_digest_equal(&hash, &hashes[step])
               ? "a checkpoint has other content"
               : NULL;
}

/* Checks all checkpoints. *latest_out is -1 if there is none. */
static const char *check_checkpoints(int64_t *latest_out, const char *save, int64_t at_least)
{
    const char *problem = NULL;
    int64_t *steps, count;
    invar_status status = invar_checkpoint_latest(latest_out, save);

    if (status == INVAR_E_NOTFOUND)
        *latest_out = -1;
    else if (status != INVAR_OK)
        return describe_failure("the latest checkpoint is not named");
    if (*latest_out < at_least)
        return "an acknowledged checkpoint is lost";
    if (!invar_path_exists(save))
        return NULL;
    if (invar_checkpoint_list(&steps, &count, save) != INVAR_OK)
        return describe_failure("checkpoints cannot be listed");
    for (int64_t i = 0; i < count && !problem; i++)
        problem = check_checkpoint(save, steps[i]);
    invar_free(steps);
    return problem ? problem : *latest_out >= 0 ? check_checkpoint(save, *latest_out) : NULL;
}

/*
 * Resumes after the latest checkpoint, as the next process would, with one more step and
 * checkpoint.
 */
static const char *resume_run(const char *dir, invar_ledger *ledger, int64_t after)
{
    const invar_checkpoint_options options = {.ledger = ledger, .keep = KEEP};
    invar_ledger_summary summary;
    bool begun = invar_ledger_find(&summary, ledger, NULL) == INVAR_OK;

    if ((begun ? scenario_resume(ledger, after) : scenario_begin(ledger)) != INVAR_OK ||
        scenario_define(ledger) != INVAR_OK || scenario_append(ledger, after + 1) != INVAR_OK)
        return describe_failure("the ledger does not go on");
    ckpt_make(&data, after + 1, ROWS);
    if (invar_checkpoint_write(NULL, path_in(dir, "save"), &data.content, &options) != INVAR_OK)
        return describe_failure("checkpoints do not go on");
    return check_steps(ledger, after + 1);
}

static const char *check_all(const char *dir, int64_t acknowledged)
{
    const invar_ledger_options create = {.create = true};
    const char *problem;
    invar_ledger *ledger;
    int64_t latest;

    problem =
        check_checkpoints(&latest, path_in(dir, "save"), acknowledged > LAST ? LAST : acknowledged);
    if (problem)
        return problem;
    if (invar_ledger_open(&ledger, path_in(dir, "ledger.db"), &create) != INVAR_OK)
        return acknowledged >= 0 || !strstr(invar_error_last()->message, "ledger.db")
                   ? describe_failure("the ledger does not open")
                   : NULL;
    problem = check_steps(ledger, acknowledged > latest ? acknowledged : latest);
    problem = problem ? problem : resume_run(dir, ledger, latest);
    invar_ledger_close(ledger);
    return problem;
}

/* ---- sweeps ---------------------------------------------------------------------------------- */

static const char *lose_and_check(int n, uint64_t seed, disk_trust trust)
{
    const char *dir = path_in(folder, "lost"), *problem;

    invar_error_clear();
    assert_ok(invar_held_folder_remove(dir));
    disk_lose(dir, n, seed, trust);
    problem = check_all(dir, acknowledged_before(n));
    invar_error_clear();
    return problem;
}

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    make_run(path_in(folder, "run"));
    print_message("%d operations on %d files and folders\n", disk.n_ops, disk.n_nodes);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return invar_held_folder_remove(folder) == INVAR_OK ? 0 : -1;
}

/*
 * Tries the loss of all unsynced writes (seed 0), of none (seed 1), and of other parts each time.
 */
static void test_power_loss__loses_nothing_durable(void **state)
{
    const int stride = (int)invar_test_count(37, 1), n_variants = (int)invar_test_count(3, 12);
    int64_t trials = 0;

    (void)state;
    for (int n = 1; n <= disk.n_ops; n += stride)
        for (int variant = 0; variant < n_variants; variant++, trials++) {
            uint64_t seed = variant < 2 ? (uint64_t)variant : (uint64_t)(n * 64 + variant);
            const char *problem = lose_and_check(n, seed, DISK_HONEST);
            if (problem)
                fail_msg("after %d operations, seed %" PRIu64 ": %s", n, seed, problem);
        }
    print_message("%d losses of power\n", (int)trials);
}

/* Returns the number of losses after which a check fails. */
static int64_t count_caught(disk_trust trust)
{
    int64_t caught = 0;

    for (int n = 1; n <= disk.n_ops; n += 37)
        caught += lose_and_check(n, 0, trust) != NULL;
    return caught;
}

static void test_power_loss__catches_a_disk_that_does_not_sync(void **state)
{
    int64_t all = count_caught(DISK_LYING), folders = count_caught(DISK_LYING_FOLDERS);

    (void)state;
    print_message("caught: %d times no sync, %d times none of folders\n", (int)all, (int)folders);
    assert_true(all > 0);
    assert_true(folders > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_power_loss__loses_nothing_durable),
        cmocka_unit_test(test_power_loss__catches_a_disk_that_does_not_sync),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
