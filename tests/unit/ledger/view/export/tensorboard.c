/*
 * tensorboard.c - tests of the export to TensorBoard: complete and growing event files.
 *
 * The files are read by a parser in this file, with its own CRC-32C. A file that grows step by
 * step, and after truncation, must equal the export. With an argument, the program writes a folder
 * that tests/oracle/tensorboard.sh compares with TensorBoard itself.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/unit/ledger/view/export/files.h"

static uint32_t crc32c(const void *data, size_t bytes)
{
    static uint32_t table[256];
    const uint8_t *c = data;
    uint32_t crc = 0xFFFFFFFF;

    for (uint32_t i = 0; i < 256 && !table[255]; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++)
            table[i] = table[i] & 1 ? table[i] >> 1 ^ 0x82F63B78 : table[i] >> 1;
    }
    while (bytes--)
        crc = crc >> 8 ^ table[(crc ^ *c++) & 0xFF];
    return ~crc;
}

static uint64_t little_endian(const char *data, int bytes)
{
    uint64_t value = 0;

    for (int i = bytes; i-- > 0;)
        value = value << 8 | (uint8_t)data[i];
    return value;
}

static bool crc_holds(const char *data, size_t bytes)
{
    uint32_t crc = crc32c(data, bytes);

    return ((crc >> 15 | crc << 17) + 0xA282EAD8) == little_endian(data + bytes, 4);
}

static uint64_t read_varint(const char **at)
{
    uint64_t value = 0;

    for (int shift = 0;; shift += 7) {
        uint8_t byte = (uint8_t) * (*at)++;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80)
            return value;
    }
}

typedef struct event {
    double wall;
    int64_t step;
    char version[32];
    char tag[600];
    float value;
} event;

/* Reads a protobuf message; nested messages are read into the same event. */
static void read_message(event *out, const char *at, const char *end, int depth)
{
    while (at < end) {
        uint64_t head = read_varint(&at), bits, length;
        switch (head & 7) {
        case 0:
            assert_int_equal(head, 2 << 3);
            out->step = (int64_t)read_varint(&at);
            break;
        case 1:
            assert_int_equal(head, 1 << 3 | 1);
            bits = little_endian(at, 8);
            memcpy(&out->wall, &bits, 8);
            at += 8;
            break;
        case 2:
            length = read_varint(&at);
            assert_true(length <= (uint64_t)(end - at));
            if (depth == 0 && head >> 3 == 3)
                memcpy(out->version, at, length);
            else if (depth == 2 && head >> 3 == 1)
                memcpy(out->tag, at, length);
            else
                read_message(out, at, at + length, depth + 1);
            at += length;
            break;
        default:
            assert_int_equal(head, 2 << 3 | 5);
            bits = little_endian(at, 4);
            memcpy(&out->value, &bits, 4);
            at += 4;
        }
    }
    assert_ptr_equal(at, end);
}

/* Reads the record at `at` and returns its end. */
static const char *read_event(event *out, const char *at)
{
    uint64_t length = little_endian(at, 8);

    assert_true(crc_holds(at, 8));
    assert_true(crc_holds(at + 12, length));
    memset(out, 0, sizeof *out);
    read_message(out, at + 12, at + 12 + length, 0);
    return at + 12 + length + 4;
}

/* ---- the tests ------------------------------------------------------------------------------- */

static void test_ledger_export__tensorboard_has_every_scalar(void **state)
{
    text events = write_events("run.db", path_of("tb"), "test");
    invar_ledger *ledger = open_ledger("run.db");
    const char *at = events.data, *end = events.data + events.bytes, *last = at;
    int64_t count = 0, gauges = 0, results = 0;
    uint64_t length;
    event e, before = {.step = -9};

    (void)state;
    assert_int_equal(crc32c("123456789", 9), 0xE3069283); // published check value of CRC-32C
    at = read_event(&e, at);
    assert_string_equal(e.version, "brain.Event:2");
    for (; at < end; count++, before = e) {
        last = at;
        at = read_event(&e, at);
        assert_true(e.step >= before.step && e.tag[0]);
        assert_true(e.wall > 1.6e9 && e.wall < 1e10);
        gauges += strncmp(e.tag, "perf/", 5) == 0;
        results += strncmp(e.tag, "eval/", 5) == 0;
    }
    assert_ptr_equal(at, end);
    assert_true(gauges > 0);
    assert_int_equal(results, count_rows(ledger, "SELECT count(*) FROM evaluation"));
    assert_int_equal(count, results + count_rows(ledger,
                                                 "SELECT (SELECT count(*) FROM metrics) + count(*) "
                                                 "FROM gauge JOIN timeline USING(run, step, seg)"));
    // control: a changed bit in the length, or in the data, of the last record is found
    length = little_endian(last, 8);
    assert_ptr_equal(last + 12 + length + 4, end);
    assert_true(crc_holds(last, 8) && crc_holds(last + 12, length));
    events.data[last - events.data] ^= 1;
    events.data[events.bytes - 5] ^= 1;
    assert_false(crc_holds(last, 8));
    assert_false(crc_holds(last + 12, length));
    invar_ledger_close(ledger);
    free(events.data);
}

static void test_ledger_export__tensorboard_keeps_odd_values(void **state)
{
    text events = write_events("odd.db", path_of("tb"), "_._odd name");
    const char *at = events.data;
    uint64_t found = 0;
    event e;

    (void)state;
    at = read_event(&e, at);
    at = read_event(&e, at);
    assert_int_equal(e.step, -1);
    assert_string_equal(e.tag, "eval/math,500/reward");
    assert_true(e.value == 0.25f);
    while (at < events.data + events.bytes) {
        at = read_event(&e, at);
        for (size_t i = 0; i < N_SPECIAL; i++) {
            float expected = (float)special_metrics[i].value;
            if (strcmp(e.tag, special_metrics[i].name) != 0)
                continue;
            assert_memory_equal(&e.value, &expected, sizeof expected);
            found |= UINT64_C(1) << i;
        }
    }
    assert_int_equal(found, (1 << N_SPECIAL) - 1);
    free(events.data);
}

static void test_ledger_export__tensorboard_never_overwrites(void **state)
{
    invar_ledger *ledger = open_ledger("run.db");
    text before = write_events("run.db", path_of("twice"), "test"), after;

    (void)state;
    assert_fails(invar_export_tensorboard(path_of("twice"), ledger, 1), INVAR_E_INVALID,
                 "has events already");
    after = read_events(path_of("twice"), "test");
    assert_int_equal(after.bytes, before.bytes);
    assert_memory_equal(after.data, before.data, before.bytes);
    assert_fails(invar_export_tensorboard(path_of("run.db"), ledger, 1), INVAR_E_IO, "run.db");
    assert_fails(invar_export_tensorboard(path_of("run.db/x"), ledger, 1), INVAR_E_IO, "run.db");
    // Missing folders are created.
    assert_ok(invar_export_tensorboard(path_of("folders/above"), ledger, 1));
    free(before.data);
    free(after.data);
    invar_ledger_close(ledger);
}

/* Returns the path of the only event file in FOLDER/test. */
static const char *events_path(const char *folder)
{
    static char path[1200];
    struct dirent *entry;
    char inner[600];
    DIR *dir;

    (void)snprintf(inner, sizeof inner, "%s/test", folder);
    dir = opendir(inner);
    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL)
        if (strstr(entry->d_name, "tfevents"))
            (void)snprintf(path, sizeof path, "%s/%s", inner, entry->d_name);
    closedir(dir);
    return path;
}

static void assert_events(const char *folder, const text *expected, size_t bytes)
{
    text is = read_events(folder, "test");

    assert_int_equal(is.bytes, bytes);
    assert_memory_equal(is.data, expected->data, bytes);
    free(is.data);
}

/*
 * A writer opened after any step, on any truncated file, completes it to the bytes of the export.
 */
static void test_ledger_export__events_grow_into_the_export(void **state)
{
    enum { LAST = 24 };
    text whole = write_events("run.db", path_of("grown"), "test");
    const char *folder = path_of("growing");
    invar_ledger *ledger = open_ledger("run.db");
    invar_tensorboard_writer *e;
    size_t upto[LAST + 3]; // bytes of the export up to a step, from step -2 on
    text now;

    (void)state;
    for (int64_t after = -2; after <= LAST; after++) {
        assert_ok(invar_tensorboard_writer_open(&e, folder, ledger, 1, after));
        now = read_events(folder, "test");
        upto[after + 2] = now.bytes;
        free(now.data);
        assert_true(after < 0 || upto[after + 2] > upto[after + 1]);
        assert_events(folder, &whole, upto[after + 2]);
        for (int64_t step = after + 1; step <= LAST; step += 3)
            assert_ok(invar_tensorboard_writer_add(e, step));
        assert_ok(invar_tensorboard_writer_add(e, LAST));
        assert_ok(invar_tensorboard_writer_add(e, 3)); // a step that was added before
        invar_tensorboard_writer_close(e);
        assert_events(folder, &whole, whole.bytes);
        // A kill or a power loss may leave a truncated file for the next writer.
        assert_int_equal(
            truncate(events_path(folder), (off_t)((size_t)(after + 2) * 997 % whole.bytes)), 0);
    }
    assert_int_equal(upto[LAST + 2], whole.bytes);
    // Events of another run, and a path that is not a folder, are rejected.
    assert_ok(invar_tensorboard_writer_check(path_of("nothing"), "test", true));
    assert_ok(invar_tensorboard_writer_check(folder, "test", false));
    assert_fails(invar_tensorboard_writer_check(folder, "test", true), INVAR_E_INVALID, "already");
    assert_int_equal(rename(events_path(folder), path_of("growing/test/other.tfevents")), 0);
    assert_fails(invar_tensorboard_writer_open(&e, folder, ledger, 1, 3), INVAR_E_INVALID,
                 "already");
    assert_fails(invar_tensorboard_writer_open(&e, path_of("run.db"), ledger, 1, 3), INVAR_E_IO,
                 "run.db");
    assert_fails(invar_tensorboard_writer_check(path_of("run.db"), "test", false), INVAR_E_IO,
                 "is no folder; name another place");
    invar_ledger_close(ledger);
    free(whole.data);
}

/* A limit on the size of files lets a write fail; the export must not leave a partial file. */
static void test_ledger_export__tensorboard_leaves_nothing_half_written(void **state)
{
    invar_ledger *ledger = open_ledger("run.db");
    struct rlimit before, limit;
    text whole = write_events("run.db", path_of("whole"), "test");
    int failures = 0;

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    for (rlim_t bytes = 0; bytes < whole.bytes; bytes += 1 + whole.bytes / 40, failures++) {
        invar_status status;
        limit = (struct rlimit){bytes, before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        status = invar_export_tensorboard(path_of("limited"), ledger, 1);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_fails(status, INVAR_E_IO, "limited");
        assert_int_equal(rmdir(path_of("limited/test")), 0); // the folder is empty
    }
    assert_true(failures >= 30);
    signal(SIGXFSZ, SIG_DFL);
    invar_ledger_close(ledger);
    free(whole.data);
}

/* Writes JSON lines and events of a run, for tests/oracle/tensorboard.sh. */
static invar_status write_for_oracle(const char *folder)
{
    invar_ledger *ledger;
    invar_status status;
    FILE *out;

    (void)snprintf(work_folder, sizeof work_folder, "%s", folder);
    out = fopen(path_of("run.jsonl"), "w");
    if (!out)
        return INVAR_FAIL(INVAR_E_IO, errno, "%s: %s", folder, strerror(errno));
    INVAR_TRY(write_run());
    INVAR_TRY(invar_ledger_open(&ledger, path_of("run.db"), NULL));
    status = invar_export_jsonl(out, ledger, 1);
    fclose(out);
    if (status == INVAR_OK)
        status = invar_export_tensorboard(path_of("board"), ledger, 1);
    invar_ledger_close(ledger);
    return status;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_export__tensorboard_has_every_scalar),
        cmocka_unit_test(test_ledger_export__tensorboard_keeps_odd_values),
        cmocka_unit_test(test_ledger_export__tensorboard_never_overwrites),
        cmocka_unit_test(test_ledger_export__events_grow_into_the_export),
        cmocka_unit_test(test_ledger_export__tensorboard_leaves_nothing_half_written),
    };

    if (argc == 2)
        return write_for_oracle(argv[1]) == INVAR_OK ? 0 : 1;
    return cmocka_run_group_tests(tests, make_ledgers, NULL);
}
