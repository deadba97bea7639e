/*
 * export.c - tests of the exports: CSV, JSON lines, TensorBoard.
 *
 * What was written is read again: CSV and event files by readers of this file's own, JSON by
 * jansson.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/view/export/export.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "tests/ledger.h"
#include "tests/support.h"

static char work[400] = INVAR_TEST_WORK "/export-XXXXXX";

static const char *path_of(const char *name)
{
    static char path[4][512];
    static int next;
    char *out = path[next++ % 4];

    (void)snprintf(out, sizeof path[0], "%s/%s", work, name);
    return out;
}

/* ---- ledgers --------------------------------------------------------------------------------- */

/* Names and numbers that a careless export would break. */
static const invar_ledger_metric odd[] = {
    {"comma,quote\"", 0.1},
    {"eval/x", 1.0 / 3.0},
    {"m/\xC3\xA4\xE2\x82\xAC", 5e-324},
    {"minus_zero", -0.0},
    {"nan", NAN},
    {"tiny", 1.1754943508222875e-38},
    {"inf", HUGE_VAL},
    {"minus_inf", -HUGE_VAL},
    {"large", 1.7976931348623157e308},
    {"=1+1", 0.30000000000000004},
    {"hundred", 100},
    {"\"", 2},
};
#define ODD (sizeof odd / sizeof odd[0])

static void write_odd(invar_ledger *ledger)
{
    const invar_ledger_pair identity = {"seed", "1"};
    const int64_t shape[] = {2, 3};
    const invar_ledger_point point = {.name = "p \"0\"",
                                      .phase = "forward",
                                      .layer = -1,
                                      .op = "linear",
                                      .kind = "act",
                                      .dtype = "f32",
                                      .shape = shape,
                                      .dims = 2,
                                      .shards = 1};
    const invar_digest digest = {{1, 2, 3}};
    const invar_ledger_metric gauge = {"perf/tokens_per_s", 12345.678};
    const invar_ledger_metric result = {"reward", 0.25}, later = {"pass@8", 0.5};
    const invar_ledger_circumstances bare = {.bare = true};
    invar_digest chain;
    int64_t last;
    invar_ledger_run run = {.name = "../odd name",
                            .kind = "train",
                            .identity = &identity,
                            .n_identity = 1,
                            .circumstances.bare = true};
    invar_ledger_step step = {
        .digests = &digest, .metrics = odd, .n_metrics = ODD, .gauges = &gauge, .n_gauges = 1};

    assert_ok(invar_ledger_begin(ledger, &run));
    assert_ok(invar_ledger_define(ledger, &point, 1));
    assert_ok(invar_ledger_evaluate(ledger, "math,500", &result, 1));
    assert_ok(invar_ledger_append(ledger, &step));
    step.step = 1;
    step.n_metrics = 0;
    assert_ok(invar_ledger_append(ledger, &step));
    assert_ok(invar_ledger_evaluate(ledger, "math,500", &result, 1));
    assert_ok(invar_ledger_chain(&last, &chain, ledger));
    assert_ok(invar_ledger_finish(ledger, 0, "done"));
    assert_ok(invar_ledger_resume(ledger, NULL, last, &chain, &bare));
    assert_ok(invar_ledger_evaluate(ledger, "math,500", &later, 1));
    assert_ok(invar_ledger_finish(ledger, 0, "done"));
}

/* Resumed once, with NaN. */
static invar_status write_run(void)
{
    return invar_test_ledger_write(
        path_of("run.db"),
        &(invar_test_ledger){.steps = 25,
                             .crash = 17,
                             .resume = 10,
                             .faults = {{INVAR_TEST_NAN, .step = 20, .point = "layer.1.mlp.out"}}});
}

static int make_ledgers(void **state)
{
    char seal[INVAR_LEDGER_SEAL_SIZE];
    invar_ledger *ledger;

    (void)state;
    assert_non_null(mkdtemp(work));
    assert_ok(
        invar_ledger_open(&ledger, path_of("odd.db"), &(invar_ledger_options){.create = true}));
    write_odd(ledger);
    assert_ok(invar_ledger_seal(seal, ledger, 1));
    invar_ledger_close(ledger);
    assert_ok(write_run());
    return 0;
}

static invar_ledger *open_ledger(const char *name)
{
    invar_ledger *ledger;

    assert_ok(invar_ledger_open(&ledger, path_of(name), NULL));
    return ledger;
}

static invar_status take_count(void *payload, const char *const *columns,
                               const invar_ledger_value *values, int count)
{
    (void)columns, (void)count;
    if (values)
        *(int64_t *)payload = values[0].integer;
    return INVAR_OK;
}

static int64_t count_rows(invar_ledger *ledger, const char *sql)
{
    int64_t count = -1;

    assert_ok(invar_ledger_select(
        ledger, &(invar_ledger_request){.sql = sql, .row = take_count, .payload = &count}));
    return count;
}

typedef struct text {
    char *data;
    size_t bytes;
} text;

static text write_text(invar_status (*write)(FILE *, invar_ledger *, int64_t), const char *name)
{
    invar_ledger *ledger = open_ledger(name);
    text out = {NULL, 0};
    FILE *stream = open_memstream(&out.data, &out.bytes);

    assert_non_null(stream);
    assert_ok(write(stream, ledger, 1));
    assert_int_equal(fclose(stream), 0);
    invar_ledger_close(ledger);
    return out;
}

static text read_all(const char *path)
{
    text out = {NULL, 0};
    FILE *in = fopen(path, "r"), *copy = open_memstream(&out.data, &out.bytes);

    assert_non_null(in);
    assert_non_null(copy);
    for (int c = fgetc(in); c != EOF; c = fgetc(in))
        fputc(c, copy);
    assert_int_equal(fclose(copy), 0);
    assert_int_equal(fclose(in), 0);
    return out;
}

static uint64_t bits_of(double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* ---- CSV ------------------------------------------------------------------------------------- */

/* Reads one field; `*at` moves behind what ended it, a comma or the end of a line. */
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
    char field[5][600]; /* step segment name value bits */
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

/* The kind's place in the order; the line is what jansson makes of it again. */
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
    assert_int_equal(json_object_size(metrics), ODD);
    for (size_t i = 0; i < ODD; i++) {
        json_t *metric = json_object_get(metrics, odd[i].name);
        json_t *value = json_object_get(metric, "value");
        const char *bits = json_string_value(json_object_get(metric, "bits"));
        assert_int_equal(strtoull(bits, NULL, 16), bits_of(odd[i].value));
        if (isfinite(odd[i].value))
            assert_int_equal(bits_of(json_real_value(value)), bits_of(odd[i].value));
        else
            assert_string_equal(json_string_value(value), odd[i].value > 0   ? "inf"
                                                          : odd[i].value < 0 ? "-inf"
                                                                             : "nan");
    }
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(step, "digests"), "p \"0\"")),
        "01020300000000000000000000000000");
    json_decref(step);
    free(jsonl.data);
}

/* ---- TensorBoard ----------------------------------------------------------------------------- */

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

/* Any message of the kinds that we write; fields that are messages are read into the same event. */
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

/* Yields the end of the record at `at`. */
static const char *read_event(event *out, const char *at)
{
    uint64_t length = little_endian(at, 8);

    assert_true(crc_holds(at, 8));
    assert_true(crc_holds(at + 12, length));
    memset(out, 0, sizeof *out);
    read_message(out, at + 12, at + 12 + length, 0);
    return at + 12 + length + 4;
}

/* The one file in FOLDER/NAME. */
static text read_events(const char *folder, const char *name)
{
    char path[1200];
    struct dirent *entry;
    DIR *dir;
    int files = 0;
    text out = {NULL, 0};

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    dir = opendir(path);
    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] == '.' && strlen(entry->d_name) < 3)
            continue;
        assert_int_equal(strncmp(entry->d_name, "events.out.tfevents.", 20), 0);
        assert_int_equal(files++, 0);
        (void)snprintf(path, sizeof path, "%s/%s/%s", folder, name, entry->d_name);
        out = read_all(path);
    }
    closedir(dir);
    return out;
}

static text write_events(const char *ledger_name, const char *folder, const char *name)
{
    invar_ledger *ledger = open_ledger(ledger_name);

    assert_ok(invar_export_tensorboard(folder, ledger, 1));
    invar_ledger_close(ledger);
    return read_events(folder, name);
}

static void test_ledger_export__tensorboard_has_every_scalar(void **state)
{
    text events = write_events("run.db", path_of("tb"), "test");
    invar_ledger *ledger = open_ledger("run.db");
    const char *at = events.data, *end = events.data + events.bytes;
    int64_t count = 0, gauges = 0, results = 0;
    event e, before = {.step = -9};

    (void)state;
    assert_int_equal(crc32c("123456789", 9), 0xE3069283); // the published check value
    at = read_event(&e, at);
    assert_string_equal(e.version, "brain.Event:2");
    for (; at < end; count++, before = e) {
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
    events.data[events.bytes - 5] ^= 1; // a negative control of this reader
    assert_false(crc_holds(events.data + events.bytes - 12, 8));
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
        for (size_t i = 0; i < ODD; i++) {
            float expected = (float)odd[i].value;
            if (strcmp(e.tag, odd[i].name) != 0)
                continue;
            assert_memory_equal(&e.value, &expected, sizeof expected);
            found |= UINT64_C(1) << i;
        }
    }
    assert_int_equal(found, (1 << ODD) - 1);
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
    assert_ok(invar_export_tensorboard(path_of("folders/above"), ledger, 1)); // are made
    free(before.data);
    free(after.data);
    invar_ledger_close(ledger);
}

/* The path of the one file in FOLDER/test. */
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

/* Opened behind each step, whatever lies there, and told step by step: always the export. */
static void test_ledger_export__events_grow_into_the_export(void **state)
{
    enum { LAST = 24 };
    text whole = write_events("run.db", path_of("grown"), "test");
    const char *folder = path_of("growing");
    invar_ledger *ledger = open_ledger("run.db");
    invar_export_events *e;
    size_t upto[LAST + 3]; // of the export: the first steps, from -2 on
    text now;

    (void)state;
    for (int64_t after = -2; after <= LAST; after++) {
        assert_ok(invar_export_events_open(&e, folder, ledger, 1, after));
        now = read_events(folder, "test");
        upto[after + 2] = now.bytes;
        free(now.data);
        assert_true(after < 0 || upto[after + 2] > upto[after + 1]);
        assert_events(folder, &whole, upto[after + 2]);
        for (int64_t step = after + 1; step <= LAST; step += 3)
            assert_ok(invar_export_events_add(e, step));
        assert_ok(invar_export_events_add(e, LAST));
        assert_ok(invar_export_events_add(e, 3)); // told already
        invar_export_events_close(e);
        assert_events(folder, &whole, whole.bytes);
        // what a kill or a loss of power may leave for the next one
        assert_int_equal(
            truncate(events_path(folder), (off_t)((size_t)(after + 2) * 997 % whole.bytes)), 0);
    }
    assert_int_equal(upto[LAST + 2], whole.bytes);
    // another run's, and a folder that is none
    assert_ok(invar_export_events_check(path_of("nothing"), "test", true));
    assert_ok(invar_export_events_check(folder, "test", false));
    assert_fails(invar_export_events_check(folder, "test", true), INVAR_E_INVALID, "already");
    assert_int_equal(rename(events_path(folder), path_of("growing/test/other.tfevents")), 0);
    assert_fails(invar_export_events_open(&e, folder, ledger, 1, 3), INVAR_E_INVALID, "already");
    assert_fails(invar_export_events_open(&e, path_of("run.db"), ledger, 1, 3), INVAR_E_IO,
                 "run.db");
    assert_fails(invar_export_events_check(path_of("run.db"), "test", false), INVAR_E_IO,
                 "Not a directory; name another folder");
    invar_ledger_close(ledger);
    free(whole.data);
}

/* ---- all ------------------------------------------------------------------------------------- */

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

/* A name that the writer would never have let in. */
static void test_ledger_export__damaged_text_is_refused(void **state)
{
    static const char name[] = "minus_zero";
    text file = read_all(path_of("odd.db"));
    invar_ledger *ledger;
    FILE *out = fopen(path_of("damaged.db"), "w"), *sink = fopen("/dev/null", "w");
    int found = 0;

    (void)state;
    for (size_t i = 0; i + sizeof name < file.bytes; i++) {
        if (memcmp(file.data + i, name, sizeof name - 1) != 0)
            continue;
        file.data[i] = (char)0xFF;
        found++;
    }
    assert_true(found > 0); // in the table and in its index
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
    invar_ledger *ledger = open_ledger("odd.db"); // short: the flush at the end is what fails
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

/* A limit on the size of files: whatever the write that fails, nothing is left. */
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
        assert_int_equal(rmdir(path_of("limited/test")), 0); // it is empty
    }
    assert_true(failures >= 30);
    signal(SIGXFSZ, SIG_DFL);
    invar_ledger_close(ledger);
    free(whole.data);
}

typedef struct faulty {
    int calls, fail_at, live;
} faulty;

static faulty heap;

static void *faulty_alloc(size_t bytes)
{
    void *block = ++heap.calls == heap.fail_at ? NULL : malloc(bytes);

    heap.live += block != NULL;
    return block;
}

static void faulty_free(void *block)
{
    heap.live -= block != NULL;
    free(block);
}

static void *faulty_alloc_aligned(size_t bytes, void *payload)
{
    void *block = NULL;

    (void)payload;
    if (++heap.calls == heap.fail_at || posix_memalign(&block, INVAR_ALIGN, bytes) != 0)
        return NULL;
    heap.live++;
    return block;
}

static void faulty_free_aligned(void *block, void *payload)
{
    (void)payload;
    faulty_free(block);
}

static void test_ledger_export__jsonl_survives_each_failed_allocation(void **state)
{
    const invar_allocator allocator = {faulty_alloc_aligned, faulty_free_aligned, NULL};
    text whole = write_text(invar_export_jsonl, "odd.db");
    invar_status status = INVAR_E_NOMEM;
    invar_ledger *ledger;
    int n, failures = 0;

    (void)state;
    json_set_alloc_funcs(faulty_alloc, faulty_free);
    invar_allocator_set(&allocator);
    heap = (faulty){.fail_at = 0};
    ledger = open_ledger("odd.db");
    for (n = 1; status != INVAR_OK; n++) {
        text out = {NULL, 0};
        FILE *stream = open_memstream(&out.data, &out.bytes);
        int live = heap.live;
        heap = (faulty){.fail_at = n, .live = live};
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
    invar_allocator_set(NULL);
    json_set_alloc_funcs(malloc, free);
    free(whole.data);
}

/* For TensorBoard itself (tests/oracle/tensorboard.sh): a run's JSON lines and events. */
static invar_status write_for_others(const char *folder)
{
    invar_ledger *ledger;
    invar_status status;
    FILE *out;

    (void)snprintf(work, sizeof work, "%s", folder);
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
        cmocka_unit_test(test_ledger_export__csv_has_every_number_of_the_timeline),
        cmocka_unit_test(test_ledger_export__csv_quotes_what_must_be_quoted),
        cmocka_unit_test(test_ledger_export__jsonl_has_everything),
        cmocka_unit_test(test_ledger_export__jsonl_keeps_bits),
        cmocka_unit_test(test_ledger_export__tensorboard_has_every_scalar),
        cmocka_unit_test(test_ledger_export__tensorboard_keeps_odd_values),
        cmocka_unit_test(test_ledger_export__tensorboard_never_overwrites),
        cmocka_unit_test(test_ledger_export__events_grow_into_the_export),
        cmocka_unit_test(test_ledger_export__same_bytes_again),
        cmocka_unit_test(test_ledger_export__unknown_run),
        cmocka_unit_test(test_ledger_export__damaged_text_is_refused),
        cmocka_unit_test(test_ledger_export__full_disk_is_an_error),
        cmocka_unit_test(test_ledger_export__tensorboard_leaves_nothing_half_written),
        cmocka_unit_test(test_ledger_export__jsonl_survives_each_failed_allocation),
    };

    if (argc == 2)
        return write_for_others(argv[1]) == INVAR_OK ? 0 : 1;
    return cmocka_run_group_tests(tests, make_ledgers, NULL);
}
