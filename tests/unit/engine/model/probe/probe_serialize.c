/*
 * probe_serialize.c - tests of points, statistics and dumps that several ranks compute.
 *
 * The samples of a step are dealt to partial probes, which are packed after every round. A probe
 * that unpacks them in rank order must have the same results as one that got all samples itself.
 * Control: unpacked in another order, the results differ.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "engine/model/probe/probe.h"
#include "tests/unit/engine/model/probe/folder.h"

enum { SAMPLES = 11, COLUMNS = 300, MAX_SIZE = 4 };

static const int64_t lengths[SAMPLES] = {3, 1, 40, 7, 64, 2, 31, 0, 5, 17, 9};

/* ---- a step ---------------------------------------------------------------------------------- */

/* Probe and dump of one rank. */
typedef struct rank_probe {
    invar_probe *probe;
    invar_dump *dump;
    int64_t x, fine; /* numbers of points; `fine` is above the level, so it is only dumped */
} rank_probe;

static int64_t define(invar_probe *probe, const char *name, int64_t level)
{
    const int64_t shape[] = {-1, COLUMNS};
    const invar_ledger_point point = {.name = name,
                                      .phase = "forward",
                                      .layer = 0,
                                      .op = "linear.fwd",
                                      .kind = "act",
                                      .level = level,
                                      .dtype = "f32",
                                      .shape = shape,
                                      .dims = 2,
                                      .shards = 1};
    int64_t number;

    assert_ok(invar_probe_define(&number, probe, &point));
    return number;
}

/* Opens a rank; it dumps to `dump_folder`, or packs its dump if that is NULL. */
static rank_probe rank_open(const char *dump_folder, bool part)
{
    const invar_probe_options options = {.level = 1, .stats = true, .is_partial = part};
    rank_probe r;

    assert_ok(invar_probe_new(&r.probe, &options));
    assert_ok(invar_dump_new(&r.dump, dump_folder, "*"));
    invar_probe_begin(r.probe, r.dump);
    r.x = define(r.probe, "x", 1);
    r.fine = define(r.probe, "fine", 2);
    return r;
}

static void rank_close(rank_probe *r)
{
    invar_dump_free(r->dump);
    invar_probe_free(r->probe);
}

static int64_t first_row(int64_t sample)
{
    int64_t row = 0;

    for (int64_t i = 0; i < sample; i++)
        row += lengths[i];
    return row;
}

/* Shows the rows of one sample to both points. */
static void add_sample(rank_probe *r, const invar_tensor *all, int64_t sample)
{
    const int64_t ends[] = {0, lengths[sample]};
    invar_tensor rows = invar_tensor_rows(all, first_row(sample), lengths[sample]);

    assert_ok(invar_probe_rows(r->probe, r->x, &rows, &(invar_row_offsets){ends, 1}));
    assert_ok(invar_probe_rows(r->probe, r->fine, &rows, &(invar_row_offsets){ends, 1}));
}

/* Results of a step. */
typedef struct step_result {
    invar_digest digest;
    invar_ledger_stat stat;
    int64_t files;
} step_result;

static step_result finish(rank_probe *r)
{
    invar_probe_result result;
    step_result e;

    assert_ok(invar_probe_finish(&result, r->probe));
    assert_int_equal(result.count, 1);
    assert_int_equal(result.n_stats, 1);
    e.digest = result.digests[0];
    e.stat = result.stats[0];
    assert_ok(invar_dump_finish(&e.files, r->dump));
    return e;
}

/* Packs the values of `from` since the last call and unpacks them into `to`. */
static void send_values(rank_probe *to, rank_probe *from)
{
    invar_rank_buffer buffer = {0};
    invar_rank_buffer_reader reader;

    assert_ok(invar_probe_pack(&buffer, from->probe));
    assert_ok(invar_dump_pack(&buffer, from->dump));
    reader = (invar_rank_buffer_reader){buffer.data, buffer.bytes};
    assert_ok(invar_probe_unpack(to->probe, &reader));
    assert_ok(invar_dump_unpack(to->dump, &reader));
    assert_int_equal(reader.bytes, 0);
    invar_rank_buffer_release(&buffer);
}

/*
 * Runs a step with `ranks` ranks. With `reversed`, rank 0 unpacks the other ranks in descending
 * order, which is wrong.
 */
static step_result run_step(const invar_tensor *all, int ranks, const char *dump_folder,
                            bool reversed)
{
    rank_probe r[MAX_SIZE];
    step_result e;

    for (int i = 0; i < ranks; i++)
        r[i] = rank_open(i ? NULL : dump_folder, i > 0);
    for (int64_t first = 0; first < SAMPLES; first += ranks) {
        for (int i = 0; i < ranks && first + i < SAMPLES; i++)
            add_sample(&r[i], all, first + i);
        for (int i = 1; i < ranks; i++)
            send_values(&r[0], &r[reversed ? ranks - i : i]);
    }
    e = finish(&r[0]);
    for (int i = 0; i < ranks; i++)
        rank_close(&r[i]);
    return e;
}

static invar_tensor make_values(void)
{
    invar_tensor x =
        invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, first_row(SAMPLES), COLUMNS));

    // sums of these squares are rounded, so their order changes the bits
    for (int64_t i = 0; i < x.shape[0] * COLUMNS; i++)
        ((float *)x.data)[i] = (float)invar_test_random(5, (uint64_t)i) * 1.7e-9f;
    ((float *)x.data)[4 * COLUMNS] = NAN;
    ((float *)x.data)[90 * COLUMNS] = INFINITY;
    return x;
}

static bool same_files(const char *a, const char *b)
{
    char command[256];

    snprintf(command, sizeof command, "diff -rq '%s/%s' '%s/%s' >/dev/null", folder, a, folder, b);
    return system(command) == 0;
}

static const char *in_folder(const char *name)
{
    static char path[sizeof folder + 16];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void test_engine_probe_pack__parts_are_one(void **state)
{
    invar_tensor x = make_values();
    step_result one = run_step(&x, 1, in_folder("one"), false);

    (void)state;
    assert_true(one.stat.nans == 1 && one.stat.infs == 1);
    assert_int_equal(one.files, 2);
    for (int ranks = 2; ranks <= MAX_SIZE; ranks++) {
        char name[16];
        step_result several;
        snprintf(name, sizeof name, "by%d", ranks);
        several = run_step(&x, ranks, in_folder(name), false);
        assert_true(invar_digest_equal(&several.digest, &one.digest));
        assert_memory_equal(&several.stat, &one.stat, sizeof one.stat);
        assert_int_equal(several.files, one.files);
        assert_true(same_files("one", name));
    }
    invar_test_free(&x);
}

static void test_engine_probe_pack__the_order_shows(void **state)
{
    invar_tensor x = make_values();
    step_result right = run_step(&x, 3, in_folder("right"), false);
    step_result wrong = run_step(&x, 3, in_folder("wrong"), true);

    (void)state;
    assert_false(invar_digest_equal(&right.digest, &wrong.digest));
    assert_true(right.stat.l2 != wrong.stat.l2);
    assert_false(same_files("right", "wrong"));
    invar_test_free(&x);
}

/* A partial probe may have a point without a value, or defined in another way. */
static void test_engine_probe_pack__a_part_may_have_nothing(void **state)
{
    invar_ledger_point other = {
        .name = "x", .phase = "backward", .op = "add", .kind = "grad", .dtype = "f32", .shards = 1};
    rank_probe part = rank_open(NULL, true), complete = rank_open(in_folder("whole"), false);
    invar_probe_result result;
    int64_t number;

    (void)state;
    assert_ok(invar_probe_define(&number, part.probe, &other));
    assert_int_equal(number, part.x);
    assert_ok(invar_probe_finish(&result, part.probe));
    assert_fails(invar_probe_define(&number, complete.probe, &other), INVAR_E_INVALID,
                 "defined before as something else");
    assert_fails(invar_probe_finish(&result, complete.probe), INVAR_E_STATE, "got no value");
    rank_close(&part);
    rank_close(&complete);
}

/* Cut buffers are rejected, and so are points that the receiver has not defined. */
static void test_engine_probe_pack__damaged_parcels_are_refused(void **state)
{
    invar_tensor x = make_values();
    rank_probe part = rank_open(NULL, true);
    invar_rank_buffer buffer = {0};

    (void)state;
    add_sample(&part, &x, 1);
    assert_ok(invar_probe_pack(&buffer, part.probe));
    assert_ok(invar_dump_pack(&buffer, part.dump));
    for (size_t bytes = 0; bytes <= buffer.bytes; bytes += 8) {
        rank_probe to = rank_open(in_folder("cut"), false);
        invar_rank_buffer_reader reader = {buffer.data, bytes};
        invar_status status = invar_probe_unpack(to.probe, &reader);
        if (status == INVAR_OK)
            status = invar_dump_unpack(to.dump, &reader);
        assert_int_equal(status, bytes == buffer.bytes ? INVAR_OK : INVAR_E_CORRUPT);
        rank_close(&to);
    }
    buffer.data[8] = 'y'; // changes the name of the first point
    for (int i = 0; i < 2; i++) {
        rank_probe to = rank_open(in_folder("named"), false);
        invar_rank_buffer_reader reader = {buffer.data, buffer.bytes};
        assert_fails(invar_probe_unpack(to.probe, &reader), INVAR_E_CORRUPT, "check its host");
        memset(buffer.data + 8, 'y', 256); // a name without a terminating NUL
        rank_close(&to);
    }
    invar_rank_buffer_release(&buffer);
    rank_close(&part);
    invar_test_free(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine_probe_pack__parts_are_one),
        cmocka_unit_test(test_engine_probe_pack__the_order_shows),
        cmocka_unit_test(test_engine_probe_pack__a_part_may_have_nothing),
        cmocka_unit_test(test_engine_probe_pack__damaged_parcels_are_refused),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
