/*
 * export.c - tests of the exports to CSV and JSON lines, and of properties of all exports.
 *
 * CSV is read again by a parser in this file, JSON by jansson; bits and numbers of rows are
 * compared with the ledger. Damaged text, a full disk and every failed allocation must give an
 * error.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <unistd.h>

#include "tests/unit/ledger/view/export/files.h"

/* ---- CSV ------------------------------------------------------------------------------------- */

/* Reads one field and moves *at past its comma or line end. Returns true if a comma follows it. */
static bool read_field(char *out, size_t size, const char **at)
{
    bool quoted = **at == '"';
    size_t used = 0;

    *at += quoted;
    for (;; (*at)++) {
        if (quoted && **at == '"') {
            (*at)++;
            if (**at != '"')
                break;
        } else if (!quoted && (**at == ',' || **at == '\r')) {
            break;
        }
        assert_true(**at != '\0' && used + 1 < size && (quoted || **at != '"'));
        out[used++] = **at;
    }
    out[used] = '\0';
    if (**at == ',') {
        (*at)++;
        return true;
    }
    assert_int_equal(strncmp(*at, "\r\n", 2), 0);
    *at += 2;
    return false;
}

typedef struct csv_row {
    char field[5][600]; /* step, segment, name, value, bits */
} csv_row;

static void read_row(csv_row *row, const char **at)
{
    for (int i = 0; i < 5; i++)
        assert_int_equal(read_field(row->field[i], sizeof row->field[i], at), i < 4);
}

static void check_number(const csv_row *row)
{
    uint64_t bits = strtoull(row->field[4], NULL, 16);
    double value = strtod(row->field[3], NULL);

    if (isnan(value)) {
        double stored;
        memcpy(&stored, &bits, sizeof stored);
        assert_true(isnan(stored));
    } else {
        assert_int_equal(bits_of(value), bits);
    }
}

static void test_ledger_export__csv_has_every_number_of_the_timeline(void **state)
{
    text csv = write_text(invar_export_csv, "run.db");
    invar_ledger *ledger = open_ledger("run.db");
    const char *at = csv.data;
    int64_t rows = 0, resumed = 0, nans = 0;
    csv_row row, before = {{"-9"}};

    (void)state;
    read_row(&row, &at);
    assert_string_equal(row.field[0], "step");
    assert_string_equal(row.field[4], "bits");
    for (; *at; rows++, before = row) {
        long long step, last = atoll(before.field[0]);
        read_row(&row, &at);
        check_number(&row);
        step = atoll(row.field[0]);
        assert_true(step > last || (step == last && strcmp(row.field[2], before.field[2]) > 0));
        assert_int_equal(atoll(row.field[1]), step >= 10 || step == -1 ? 1 : 0);
        resumed += row.field[1][0] == '1';
        nans += strcmp(row.field[3], "nan") == 0;
    }
    assert_int_equal(rows, count_rows(ledger, "SELECT (SELECT count(*) FROM metrics) + "
                                              "(SELECT count(*) FROM evaluation)"));
    assert_true(resumed > 0 && resumed < rows && nans >= 10);
    invar_ledger_close(ledger);
    free(csv.data);
}

static void test_ledger_export__csv_quotes_what_must_be_quoted(void **state)
{
    text csv = write_text(invar_export_csv, "odd.db");

    (void)state;
    assert_string_equal(csv.data, "step,segment,name,value,bits\r\n"
                                  "-1,0,\"eval/math,500/reward\",0.25,0x3fd0000000000000\r\n"
                                  "0,0,\"\"\"\",2,0x4000000000000000\r\n"
                                  "0,0,=1+1,0.30000000000000004,0x3fd3333333333334\r\n"
                                  "0,0,\"comma,quote\"\"\",0.1,0x3fb999999999999a\r\n"
                                  "0,0,eval/x,0.3333333333333333,0x3fd5555555555555\r\n"
                                  "0,0,hundred,1e+02,0x4059000000000000\r\n"
                                  "0,0,inf,inf,0x7ff0000000000000\r\n"
                                  "0,0,large,1.7976931348623157e+308,0x7fefffffffffffff\r\n"
                                  "0,0,m/\xC3\xA4\xE2\x82\xAC,5e-324,0x0000000000000001\r\n"
                                  "0,0,minus_inf,-inf,0xfff0000000000000\r\n"
                                  "0,0,minus_zero,-0,0x8000000000000000\r\n"
                                  "0,0,nan,nan,0x7ff8000000000000\r\n"
                                  "0,0,tiny,1.1754943508222875e-38,0x3810000000000000\r\n"
                                  "1,1,\"eval/math,500/pass@8\",0.5,0x3fe0000000000000\r\n"
                                  "1,0,\"eval/math,500/reward\",0.25,0x3fd0000000000000\r\n");
    free(csv.data);
}

/* ---- JSON lines ------------------------------------------------------------------------------ */

static const struct {
    const char *kind, *sql;
} kinds[] = {
    {"run", "SELECT count(*) FROM run"},
    {"identity", "SELECT count(*) FROM identity"},
    {"segment", "SELECT count(*) FROM segment"},
    {"fact", "SELECT count(*) FROM fact"},
    {"object", "SELECT count(*) FROM object"},
    {"point", "SELECT count(*) FROM point"},
    {"step", "SELECT count(*) FROM step"},
    {"replica", "SELECT count(*) FROM digest WHERE rank > 0"},
    {"stat", "SELECT count(*) FROM stat"},
    {"sample", "SELECT count(*) FROM sample"},
    {"reply", "SELECT count(*) FROM reply"},
    {"reward_part", "SELECT count(*) FROM reward_part"},
    {"led_sample", "SELECT count(*) FROM led_sample"},
    {"kept_sample", "SELECT count(*) FROM kept_sample"},
    {"work", "SELECT count(*) FROM work"},
    {"op_time", "SELECT count(*) FROM op_time"},
    {"evaluation", "SELECT count(*) FROM evaluation"},
    {"checkpoint", "SELECT count(*) FROM checkpoint"},
    {"event", "SELECT count(*) FROM event"},
    {"seal", "SELECT count(*) FROM seal"},
    {"entry", "SELECT count(*) FROM entry"},
};
#define KINDS (sizeof kinds / sizeof kinds[0])

/*
 * Returns the index of the line's kind. Asserts that jansson writes the parsed line to equal bytes.
 */
static size_t check_line(const char *line, size_t bytes, int64_t members[3])
{
    json_t *object = json_loadb(line, bytes, JSON_REJECT_DUPLICATES, NULL);
    char *again = json_dumps(object, JSON_COMPACT);
    size_t i = 0;

    assert_non_null(object);
    assert_int_equal(strlen(again), bytes);
    assert_memory_equal(again, line, bytes);
    while (i < KINDS && strcmp(kinds[i].kind, json_string_value(json_object_get(object, "kind"))))
        i++;
    assert_true(i < KINDS);
    members[0] += (int64_t)json_object_size(json_object_get(object, "metrics"));
    members[1] += (int64_t)json_object_size(json_object_get(object, "digests"));
    members[2] += (int64_t)json_object_size(json_object_get(object, "gauges")) +
                  (int64_t)json_object_size(json_object_get(object, "timings"));
    free(again);
    json_decref(object);
    return i;
}

static void check_lines(const char *name)
{
    text jsonl = write_text(invar_export_jsonl, name);
    invar_ledger *ledger = open_ledger(name);
    int64_t count[KINDS] = {0}, members[3] = {0};
    size_t last = 0;

    for (char *line = jsonl.data, *end; *line; line = end + 1) {
        size_t kind;
        end = strchr(line, '\n');
        assert_non_null(end);
        kind = check_line(line, (size_t)(end - line), members);
        assert_true(kind >= last);
        last = kind;
        count[kind]++;
    }
    for (size_t i = 0; i < KINDS; i++)
        assert_int_equal(count[i], count_rows(ledger, kinds[i].sql));
    assert_int_equal(members[0], count_rows(ledger, "SELECT count(*) FROM metric"));
    assert_int_equal(members[1], count_rows(ledger, "SELECT count(*) FROM digests"));
    assert_int_equal(members[2], count_rows(ledger, "SELECT (SELECT count(*) FROM gauge) + "
                                                    "(SELECT count(*) FROM timing)"));
    invar_ledger_close(ledger);
    free(jsonl.data);
}

static void test_ledger_export__jsonl_has_everything(void **state)
{
    (void)state;
    check_lines("run.db");
    check_lines("odd.db");
}

static void test_ledger_export__jsonl_keeps_bits(void **state)
{
    text jsonl = write_text(invar_export_jsonl, "odd.db");
    const char *line =
        strstr(jsonl.data, "{\"kind\":\"step\",\"step\":0,\"segment\":0,\"newest\":1");
    json_t *step, *metrics;

    (void)state;
    assert_non_null(line);
    step = json_loads(line, JSON_DISABLE_EOF_CHECK, NULL);
    metrics = json_object_get(step, "metrics");
    assert_int_equal(json_object_size(metrics), N_SPECIAL);
    for (size_t i = 0; i < N_SPECIAL; i++) {
        json_t *metric = json_object_get(metrics, special_metrics[i].name);
        json_t *value = json_object_get(metric, "value");
        const char *bits = json_string_value(json_object_get(metric, "bits"));
        assert_int_equal(strtoull(bits, NULL, 16), bits_of(special_metrics[i].value));
        if (isfinite(special_metrics[i].value))
            assert_int_equal(bits_of(json_real_value(value)), bits_of(special_metrics[i].value));
        else
            assert_string_equal(json_string_value(value), special_metrics[i].value > 0   ? "inf"
                                                          : special_metrics[i].value < 0 ? "-inf"
                                                                                         : "nan");
    }
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(step, "digests"), "p \"0\"")),
        "01020300000000000000000000000000");
    json_decref(step);
    free(jsonl.data);
}

/* ---- all exports ----------------------------------------------------------------------------- */

static void test_ledger_export__same_bytes_again(void **state)
{
    static invar_status (*const writers[])(FILE *, invar_ledger *, int64_t) = {invar_export_csv,
                                                                               invar_export_jsonl};
    text a, b;

    (void)state;
    for (int i = 0; i < 2; i++) {
        a = write_text(writers[i], "run.db");
        b = write_text(writers[i], "run.db");
        assert_int_equal(a.bytes, b.bytes);
        assert_memory_equal(a.data, b.data, a.bytes);
        free(a.data);
        free(b.data);
    }
    a = write_events("run.db", path_of("a"), "test");
    b = write_events("run.db", path_of("b"), "test");
    assert_int_equal(a.bytes, b.bytes);
    assert_memory_equal(a.data, b.data, a.bytes);
    free(a.data);
    free(b.data);
}

static void test_ledger_export__unknown_run(void **state)
{
    invar_ledger *ledger = open_ledger("run.db");

    (void)state;
    assert_fails(invar_export_csv(stdout, ledger, 9), INVAR_E_NOTFOUND, "no run 9");
    assert_fails(invar_export_jsonl(stdout, ledger, 9), INVAR_E_NOTFOUND, "no run 9");
    assert_fails(invar_export_tensorboard(path_of("none"), ledger, 9), INVAR_E_NOTFOUND, "run 9");
    assert_int_not_equal(access(path_of("none"), F_OK), 0);
    invar_ledger_close(ledger);
}

/* A name of invalid UTF-8, which the library never writes, must fail the export. */
static void test_ledger_export__damaged_text_is_refused(void **state)
{
    static const char name[] = "minus_zero";
    text file = read_all(path_of("odd.db"));
    invar_ledger *ledger;
    FILE *out = fopen(path_of("damaged.db"), "w"), *sink = fopen("/dev/null", "w");
    int found = 0;

    (void)state;
    free(write_events("odd.db", path_of("tb"), "_._odd name").data);
    for (size_t i = 0; i + sizeof name < file.bytes; i++) {
        if (memcmp(file.data + i, name, sizeof name - 1) != 0)
            continue;
        file.data[i] = (char)0xFF;
        found++;
    }
    assert_true(found > 0); // the name is in the table and in its index
    assert_int_equal(fwrite(file.data, 1, file.bytes, out), file.bytes);
    assert_int_equal(fclose(out), 0);
    ledger = open_ledger("damaged.db");
    assert_fails(invar_export_csv(sink, ledger, 1), INVAR_E_CORRUPT, "'?inus_zero'");
    assert_fails(invar_export_jsonl(sink, ledger, 1), INVAR_E_CORRUPT, "'?inus_zero'");
    assert_fails(invar_export_tensorboard(path_of("tb"), ledger, 1), INVAR_E_INVALID, "already");
    assert_fails(invar_export_tensorboard(path_of("tb2"), ledger, 1), INVAR_E_CORRUPT,
                 "'?inus_zero'");
    invar_ledger_close(ledger);
    fclose(sink);
    free(file.data);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static void test_ledger_export__full_disk_is_an_error(void **state)
{
    invar_ledger *ledger = open_ledger("odd.db"); // short, so only the flush at the end fails
    invar_ledger *longer = open_ledger("run.db");
    FILE *full = fopen("/dev/full", "w");

    (void)state;
    assert_non_null(full);
    assert_fails(invar_export_csv(full, ledger, 1), INVAR_E_IO, strerror(ENOSPC));
    clearerr(full);
    assert_fails(invar_export_csv(full, longer, 1), INVAR_E_IO, strerror(ENOSPC));
    clearerr(full);
    assert_fails(invar_export_jsonl(full, ledger, 1), INVAR_E_IO, strerror(ENOSPC));
    clearerr(full);
    assert_fails(invar_export_jsonl(full, longer, 1), INVAR_E_IO, strerror(ENOSPC));
    fclose(full);
    invar_ledger_close(ledger);
    invar_ledger_close(longer);
}

static void test_ledger_export__jsonl_survives_each_failed_allocation(void **state)
{
    text whole = write_text(invar_export_jsonl, "odd.db");
    invar_status status = INVAR_E_NOMEM;
    invar_ledger *ledger;
    int n, failures = 0;

    (void)state;
    heap.fail_at = 0;
    heap_watch();
    ledger = open_ledger("odd.db");
    for (n = 1; status != INVAR_OK; n++) {
        text out = {NULL, 0};
        FILE *stream = open_memstream(&out.data, &out.bytes);
        int64_t live = heap.live;
        heap.fail_at = n;
        heap.calls = 0;
        status = invar_export_jsonl(stream, ledger, 1);
        fclose(stream);
        assert_int_equal(heap.live, live);
        if (status != INVAR_OK) {
            assert_fails(status, INVAR_E_NOMEM, "no memory");
            failures++;
        } else {
            assert_int_equal(out.bytes, whole.bytes);
            assert_memory_equal(out.data, whole.data, whole.bytes);
        }
        free(out.data);
    }
    assert_int_equal(failures, heap.calls);
    assert_true(failures > 100);
    invar_ledger_close(ledger);
    assert_int_equal(heap.live, 0);
    heap_unwatch();
    free(whole.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_export__csv_has_every_number_of_the_timeline),
        cmocka_unit_test(test_ledger_export__csv_quotes_what_must_be_quoted),
        cmocka_unit_test(test_ledger_export__jsonl_has_everything),
        cmocka_unit_test(test_ledger_export__jsonl_keeps_bits),
        cmocka_unit_test(test_ledger_export__same_bytes_again),
        cmocka_unit_test(test_ledger_export__unknown_run),
        cmocka_unit_test(test_ledger_export__damaged_text_is_refused),
        cmocka_unit_test(test_ledger_export__full_disk_is_an_error),
        cmocka_unit_test(test_ledger_export__jsonl_survives_each_failed_allocation),
    };

    return cmocka_run_group_tests(tests, make_ledgers, NULL);
}
