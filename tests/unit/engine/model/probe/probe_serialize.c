/*
 * probe_serialize.c - tests of points, statistics and dumps that several ranks have computed.
 *
 * The samples of a step go round among parts, which pack what they have got after every round. A
 * probe that unpacks it in order must end as one that got all samples itself; in another order it
 * must not.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "engine/model/probe/probe.h"
#include "tests/unit/engine/model/probe/folder.h"

enum { SAMPLES = 11, COLUMNS = 300, MOST_RANKS = 4 };

static const int64_t lengths[SAMPLES] = {3, 1, 40, 7, 64, 2, 31, 0, 5, 17, 9};

/* ---- a step ---------------------------------------------------------------------------------- */

/* One rank: its probe, and the dump of it. */
typedef struct rank {
    invar_probe *probe;
    invar_dump *dump;
    int64_t x, fine; /* points; `fine` is above the level, and only dumped */
} rank;

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

static rank rank_open(const char *into, bool part)
{
    const invar_probe_options options = {.level = 1, .stats = true, .is_partial = part};
    rank r;

    assert_ok(invar_probe_new(&r.probe, &options));
    assert_ok(invar_dump_new(&r.dump, into, "*"));
    invar_probe_begin(r.probe, r.dump);
    r.x = define(r.probe, "x", 1);
    r.fine = define(r.probe, "fine", 2);
    return r;
}

static void rank_close(rank *r)
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

static void take(rank *r, const invar_tensor *all, int64_t sample)
{
    const int64_t ends[] = {0, lengths[sample]};
    invar_tensor rows = invar_tensor_rows(all, first_row(sample), lengths[sample]);

    assert_ok(invar_probe_rows(r->probe, r->x, &rows, &(invar_row_offsets){ends, 1}));
    assert_ok(invar_probe_rows(r->probe, r->fine, &rows, &(invar_row_offsets){ends, 1}));
}

/* What a step has come to. */
typedef struct ending {
    invar_digest digest;
    invar_ledger_stat stat;
    int64_t files;
} ending;

static ending finish(rank *r)
{
    invar_probe_result result;
    ending e;

    assert_ok(invar_probe_finish(&result, r->probe));
    assert_int_equal(result.count, 1);
    assert_int_equal(result.n_stats, 1);
    e.digest = result.digests[0];
    e.stat = result.stats[0];
    assert_ok(invar_dump_finish(&e.files, r->dump));
    return e;
}

static void give(rank *to, rank *from)
{
    invar_rank_buffer parcel = {0};
    invar_rank_buffer_reader rest;

    assert_ok(invar_probe_pack(&parcel, from->probe));
    assert_ok(invar_dump_pack(&parcel, from->dump));
    rest = (invar_rank_buffer_reader){parcel.data, parcel.bytes};
    assert_ok(invar_probe_unpack(to->probe, &rest));
    assert_ok(invar_dump_unpack(to->dump, &rest));
    assert_int_equal(rest.bytes, 0);
    invar_rank_buffer_release(&parcel);
}

/* `turned`: rank 0 takes the others from the last to the first, which is wrong. */
static ending by_ranks(const invar_tensor *all, int ranks, const char *into, bool turned)
{
    rank r[MOST_RANKS];
    ending e;

    for (int i = 0; i < ranks; i++)
        r[i] = rank_open(i ? NULL : into, i > 0);
    for (int64_t first = 0; first < SAMPLES; first += ranks) {
        for (int i = 0; i < ranks && first + i < SAMPLES; i++)
            take(&r[i], all, first + i);
        for (int i = 1; i < ranks; i++)
            give(&r[0], &r[turned ? ranks - i : i]);
    }
    e = finish(&r[0]);
    for (int i = 0; i < ranks; i++)
        rank_close(&r[i]);
    return e;
}

static invar_tensor values(void)
{
    invar_tensor x =
        invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, first_row(SAMPLES), COLUMNS));

    // sums of such squares are rounded: their order shows
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

static const char *below(const char *name)
{
    static char path[sizeof folder + 16];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void test_engine_probe_pack__parts_are_one(void **state)
{
    invar_tensor x = values();
    ending one = by_ranks(&x, 1, below("one"), false);

    (void)state;
    assert_true(one.stat.nans == 1 && one.stat.infs == 1);
    assert_int_equal(one.files, 2);
    for (int ranks = 2; ranks <= MOST_RANKS; ranks++) {
        char name[16];
        ending more;
        snprintf(name, sizeof name, "by%d", ranks);
        more = by_ranks(&x, ranks, below(name), false);
        assert_true(invar_digest_equal(&more.digest, &one.digest));
        assert_memory_equal(&more.stat, &one.stat, sizeof one.stat);
        assert_int_equal(more.files, one.files);
        assert_true(same_files("one", name));
    }
    invar_test_free(&x);
}

static void test_engine_probe_pack__the_order_shows(void **state)
{
    invar_tensor x = values();
    ending right = by_ranks(&x, 3, below("right"), false);
    ending wrong = by_ranks(&x, 3, below("wrong"), true);

    (void)state;
    assert_false(invar_digest_equal(&right.digest, &wrong.digest));
    assert_true(right.stat.l2 != wrong.stat.l2);
    assert_false(same_files("right", "wrong"));
    invar_test_free(&x);
}

/* A part may have nothing of a point, and know it in another way. */
static void test_engine_probe_pack__a_part_may_have_nothing(void **state)
{
    invar_ledger_point other = {
        .name = "x", .phase = "backward", .op = "add", .kind = "grad", .dtype = "f32", .shards = 1};
    rank part = rank_open(NULL, true), whole = rank_open(below("whole"), false);
    invar_probe_result result;
    int64_t number;

    (void)state;
    assert_ok(invar_probe_define(&number, part.probe, &other));
    assert_int_equal(number, part.x);
    assert_ok(invar_probe_finish(&result, part.probe));
    assert_fails(invar_probe_define(&number, whole.probe, &other), INVAR_E_INVALID,
                 "defined before as something else");
    assert_fails(invar_probe_finish(&result, whole.probe), INVAR_E_STATE, "got no value");
    rank_close(&part);
    rank_close(&whole);
}

/* Whatever is cut off, the rest is refused; and so is a point that nobody has heard of. */
static void test_engine_probe_pack__damaged_parcels_are_refused(void **state)
{
    invar_tensor x = values();
    rank part = rank_open(NULL, true);
    invar_rank_buffer parcel = {0};

    (void)state;
    take(&part, &x, 1);
    assert_ok(invar_probe_pack(&parcel, part.probe));
    assert_ok(invar_dump_pack(&parcel, part.dump));
    for (size_t bytes = 0; bytes <= parcel.bytes; bytes += 8) {
        rank to = rank_open(below("cut"), false);
        invar_rank_buffer_reader rest = {parcel.data, bytes};
        invar_status status = invar_probe_unpack(to.probe, &rest);
        if (status == INVAR_OK)
            status = invar_dump_unpack(to.dump, &rest);
        assert_int_equal(status, bytes == parcel.bytes ? INVAR_OK : INVAR_E_CORRUPT);
        rank_close(&to);
    }
    parcel.data[8] = 'y'; // the name of the first point
    for (int i = 0; i < 2; i++) {
        rank to = rank_open(below("named"), false);
        invar_rank_buffer_reader rest = {parcel.data, parcel.bytes};
        assert_fails(invar_probe_unpack(to.probe, &rest), INVAR_E_CORRUPT, "check its host");
        memset(parcel.data + 8, 'y', 256); // and one that does not end
        rank_close(&to);
    }
    invar_rank_buffer_release(&parcel);
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
