/*
 * show.c - invar ledger show: prints everything that a ledger records about a run or one of its
 * steps.
 *
 * Each section is one SELECT statement. A column X_bits is shown as X, the double with these bits,
 * and as X_bits in hexadecimal, so NaN and -0 keep their bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <string.h>

#include "base/console/term.h"
#include "base/text.h"
#include "cli/ledger/ledger.h"
#include "cli/safe_text.h"
#include "engine/config/config.h"
#include "ledger/view/measured.h"

#include "base/invar_banned.h"

/* Selects all keys, keys that differ from their default, or keys with their default. */
typedef enum which { WHICH_ALL, WHICH_CHANGED, WHICH_DEFAULT } which;

typedef struct section {
    const char *name;
    const char *sql; /* may use :run, :step (the last step without --step) and :limit */
    bool bits;       /* an exact table shows the bits too; JSON always does */
    which which;     /* JSON has all keys under the first section name */
} section;

#define TIME_OF(ns) "strftime('%Y-%m-%dT%H:%M:%SZ', " ns " / 1000000000, 'unixepoch')"
#define ENTRY_TIME TIME_OF("e.ns")
#define START_TIME TIME_OF("start_ns")
#define NEWEST "(SELECT max(seg) FROM step WHERE run = :run AND step = :step)"

/* LEFT JOIN, because a damaged ledger may lack a name; its values are shown anyway. */
#define NUMBERS(table)                                                                             \
    "SELECT n.name, x.value_bits FROM " table " x LEFT JOIN series n USING(series)"                \
    " WHERE x.run = :run AND x.step = :step AND x.seg = " NEWEST " AND " INVAR_MEASURED_METRIC     \
    " ORDER BY n.name"

#define MEASURED(column) "iif(" INVAR_MEASURED_ANSWERS ", NULL, " column ") AS " column ", "

#define IDENTITY "SELECT key, value FROM identity WHERE run = :run ORDER BY key"
#define FACTS                                                                                      \
    "SELECT scope, key, value, group_concat(seg, ' ') AS segments FROM"                            \
    " (SELECT * FROM fact WHERE run = :run ORDER BY seg)"                                          \
    " GROUP BY scope, key, value ORDER BY scope, key, min(seg)"

/*
 * Sections of a run, the most important first. Sections limited to the last rows show the newest
 * first.
 */
static const section of_run[] = {
    {.name = "last metrics", .sql = NUMBERS("metric"), .bits = true},
    {.name = "last evaluations",
     .sql = "SELECT e.dataset, n.name, e.step, e.value_bits FROM evaluation e"
            " LEFT JOIN series n USING(series) WHERE e.run = :run AND (e.step, e.seg) ="
            " (SELECT x.step, x.seg FROM evaluation x WHERE x.run = :run AND x.dataset = e.dataset"
            " ORDER BY x.step DESC, x.seg DESC LIMIT 1)"
            " ORDER BY e.dataset, n.name",
     .bits = true},
    {.name = "identity", .sql = IDENTITY, .which = WHICH_CHANGED},
    {.name = "segments",
     .sql =
         "SELECT s.seg AS segment, " ENTRY_TIME " AS begun, s.after_step,"
         " (SELECT count(*) FROM step t WHERE t.run = s.run AND t.seg = s.seg) AS steps,"
         " f.exit_code, coalesce(f.reason, CASE WHEN s.seg < max(s.seg) OVER () THEN 'killed' END)"
         " AS ended FROM segment s JOIN entry e ON e.run = s.run AND e.n = s.entry"
         " LEFT JOIN finish f ON f.run = s.run AND f.seg = s.seg WHERE s.run = :run ORDER BY "
         "s.seg"},
    {.name = "last checkpoints",
     .sql = "SELECT step, seg AS segment, state, path, bytes, lower(hex(hash)) AS hash FROM "
            "checkpoint c"
            " WHERE run = :run AND entry = (SELECT max(entry) FROM checkpoint d"
            " WHERE d.run = c.run AND d.step = c.step AND d.seg = c.seg)"
            " ORDER BY step DESC, seg DESC LIMIT :limit"},
    {.name = "last events",
     .sql =
         "SELECT " ENTRY_TIME
         " AS time, v.seg AS segment, v.step, v.level, v.kind, v.message, v.data"
         " FROM event v JOIN entry e ON e.run = v.run AND e.n = v.entry"
         " WHERE v.run = :run AND v.level <> 'debug' ORDER BY v.entry DESC, v.i DESC LIMIT :limit"},
    {.name = "last seals",
     .sql = "SELECT entry, lower(hex(content)) AS content, lower(hex(integrity)) AS integrity,"
            " lower(hex(sha256)) AS sha256 FROM seal WHERE run = :run ORDER BY entry DESC LIMIT "
            ":limit"},
    {.name = "facts", .sql = FACTS, .which = WHICH_CHANGED},
    {.name = "objects",
     .sql = "SELECT lower(hex(hash)) AS hash, kind, length(data) AS bytes FROM object"
            " WHERE run = :run ORDER BY entry, hash"},
    {.name = "identity at its defaults", .sql = IDENTITY, .which = WHICH_DEFAULT},
    {.name = "facts at their defaults", .sql = FACTS, .which = WHICH_DEFAULT},
    {.name = NULL},
};

static const section of_step[] = {
    {.name = "executions",
     .sql = "SELECT s.seg AS segment, lower(hex(s.root)) AS root, lower(hex(s.chain)) AS chain,"
            " " ENTRY_TIME
            " AS time, s.weights, lower(hex(s.batch)) AS batch, lower(hex(s.rng)) AS rng,"
            " lower(hex(s.content)) AS content FROM step s JOIN entry e ON e.run = s.run AND e.n = "
            "s.entry"
            " WHERE s.run = :run AND s.step = :step ORDER BY s.seg"},
    {.name = "metrics", .sql = NUMBERS("metric"), .bits = true},
    {.name = "evaluations",
     .sql = "SELECT e.seg AS segment, e.dataset, n.name, e.value_bits FROM evaluation e"
            " LEFT JOIN series n USING(series) WHERE e.run = :run AND e.step = :step"
            " ORDER BY e.seg, e.dataset, n.name",
     .bits = true},
    {.name = "digests",
     .sql = "SELECT d.ord, d.name, d.phase, d.layer, d.op, d.kind, d.level, d.hash,"
            " (SELECT count(*) FROM digests r WHERE r.run = d.run AND r.step = d.step AND r.seg = "
            "d.seg"
            " AND r.rank > 0 AND r.ord = d.ord AND d.replicated AND r.hash <> d.hash) AS "
            "differing_ranks"
            " FROM digests d WHERE d.run = :run AND d.step = :step AND d.seg = " NEWEST
            " AND d.rank = 0 ORDER BY d.ord"},
    {.name = "statistics",
     .sql =
         "SELECT s.rank, s.ord, p.name, s.nans, s.infs, s.absmax_bits, s.l2_bits FROM stat s"
         " LEFT JOIN digest d ON d.run = s.run AND d.step = s.step AND d.seg = s.seg AND d.rank = 0"
         " LEFT JOIN point p ON p.manifest = d.manifest AND p.ord = s.ord"
         " WHERE s.run = :run AND s.step = :step AND s.seg = " NEWEST " ORDER BY s.rank, s.ord"},
    {.name = "samples",
     .sql = "SELECT idx, prompt, " MEASURED("reward_bits") MEASURED("advantage_bits")
         MEASURED("diff_bits")
             MEASURED("diff_at") "prompt_tokens, tokens,"
                                 " finish, weights_first, weights_last, rng, arrival, "
                                 "lower(hex(token_hash)) AS token_hash,"
                                 " lower(hex(rollout_logp)) AS rollout_logp, "
                                 "lower(hex(train_logp)) AS train_logp,"
                                 " lower(hex(prompt_hash)) AS prompt_hash, "
                                 "lower(hex(weights_hash)) AS weights_hash"
                                 " FROM samples x WHERE run = :run AND step = :step ORDER BY idx"},
    {.name = "replies",
     .sql = "SELECT plugin, call, lower(hex(request)) AS request, length(data) AS bytes,"
            " CASE WHEN :samples THEN substr(CAST(data AS TEXT), 1, 60) END AS data_begins"
            " FROM reply"
            " WHERE run = :run AND step = :step AND seg = " NEWEST " ORDER BY plugin, call"},
    {.name = "timings",
     .sql = "SELECT phase, " START_TIME " AS begun, duration_ns FROM timing"
            " WHERE run = :run AND step = :step AND seg = " NEWEST " ORDER BY start_ns, phase"},
    {.name = "ranks",
     .sql = "SELECT rank, host, phase, move, calls, duration_ns, sent, received FROM work"
            " WHERE run = :run AND step = :step AND seg = " NEWEST " ORDER BY rank, phase, move"},
    {.name = "gauges", .sql = NUMBERS("gauge")},
    {.name = "events",
     .sql = "SELECT " ENTRY_TIME " AS time, v.seg AS segment, v.level, v.kind, v.message, v.data"
            " FROM event v JOIN entry e ON e.run = v.run AND e.n = v.entry"
            " WHERE v.run = :run AND v.step = :step ORDER BY v.entry, v.i"},
    {.name = NULL},
};

#define REAL(name)                                                                                 \
    name " real/text (a string: nan, inf or -inf), " name "_bits 0xhex16 (the double's bits)"
#define VALUE REAL("value")
#define ABSMAX REAL("absmax")
#define L2 REAL("l2")
#define REWARD REAL("reward")
#define ADVANTAGE REAL("advantage")
#define DIFFERENCE REAL("diff")

#define RUN "run {" INVAR_RUN_MEMBERS("") ", model " INVAR_RUN_MODEL "}"
#define METRICS "[{name text?, " VALUE "}]"
#define EXECUTION                                                                                  \
    "{segment int, root hex32, chain hex32, time text, weights int, batch hex32, rng hex32,"       \
    " content hex32}"
#define DIGEST                                                                                     \
    "{ord int, name text, phase text, layer int?, op text, kind text, level int, hash hex32,"      \
    " differing_ranks int}"
#define STATISTIC "{rank int, ord int, name text?, nans int, infs int, " ABSMAX ", " L2 "}"
#define SAMPLE                                                                                     \
    "{idx int, prompt int, " REWARD ", " ADVANTAGE ", " DIFFERENCE ", diff_at int,"                \
    " prompt_tokens int, tokens int, finish text, weights_first int, weights_last int, rng text,"  \
    " arrival int, token_hash hex32, rollout_logp hex32, train_logp hex32, prompt_hash hex32,"     \
    " weights_hash hex32}"

#define RESULT                                                                                     \
    "{" RUN ", metrics " METRICS ", evaluations [{dataset text, name text?, step int, " VALUE      \
    "}],"                                                                                          \
    " identity [{key text, value text}],"                                                          \
    " segments [{segment int, begun text, after_step int, steps int, exit_code int?,"              \
    " ended text?}],"                                                                              \
    " checkpoints [{step int, segment int, state text, path text, bytes int, hash hex32}],"        \
    " events [{time text, segment int, step int?, level text, kind text, message text,"            \
    " data text?}],"                                                                               \
    " seals [{entry int, content hex32, integrity hex32, sha256 hex64}],"                          \
    " facts [{scope text, key text, value text, segments text}],"                                  \
    " objects [{hash hex32, kind text, bytes int}]} (a run);"                                      \
    " {" RUN ", step int, executions [" EXECUTION "], metrics " METRICS                            \
    ", evaluations [{segment int, dataset text, name text?, " VALUE "}], digests [" DIGEST         \
    "], statistics [" STATISTIC "], samples [" SAMPLE                                              \
    "], replies [{plugin text, call int, request hex32, bytes int, data_begins text?}],"           \
    " timings [{phase text, begun text, duration_ns int}],"                                        \
    " ranks [{rank int, host text, phase text, move text, calls int, duration_ns int, sent int,"   \
    " received int}], gauges " METRICS                                                             \
    ", events [{time text, segment int, level text, kind text, message text, data text?}]}"        \
    " (with --step: one step)"

enum { LAST = 10, MAX_COLUMNS = 32, BITS_SIZE = 19 };

typedef struct settings {
    const char *ledger;
    int64_t step; /* -1 to show the run */
    bool json;
    bool exact;
    bool all;
    bool no_samples;
} settings;

/* Receives the rows of one section. */
typedef struct section_sink {
    const section *section;
    const char *ledger;
    json_t *array;          /* NULL without --json */
    invar_row_writer *rows; /* NULL with --json */
    bool exact;
    int64_t count;
} section_sink;

/* ---- bits as numbers ------------------------------------------------------------------------- */

typedef struct expanded_row {
    const char *columns[MAX_COLUMNS];
    invar_ledger_value values[MAX_COLUMNS];
    int count;
    char names[MAX_COLUMNS][INVAR_LEDGER_QUERY_WORD];
    char bits[MAX_COLUMNS][BITS_SIZE];
} expanded_row;

static void push_column(expanded_row *e, const char *column, const invar_ledger_value *value)
{
    INVAR_CHECK(e->count < MAX_COLUMNS);
    e->columns[e->count] = column;
    if (value)
        e->values[e->count] = *value;
    e->count++;
}

/* Adds X for a column X_bits, and with `bits` also the column itself. NULL stays NULL. */
static void push_double(expanded_row *e, const char *column, const invar_ledger_value *value,
                        bool bits)
{
    char *name = e->names[e->count], *hex = e->bits[e->count];
    invar_ledger_value real = {.type = INVAR_LEDGER_TYPE_REAL},
                       text = {.type = INVAR_LEDGER_TYPE_TEXT};

    snprintf(name, INVAR_LEDGER_QUERY_WORD, "%.*s", (int)(strlen(column) - strlen("_bits")),
             column);
    if (value && value->type == INVAR_LEDGER_TYPE_NULL) {
        real = text = *value;
    } else if (value) {
        memcpy(&real.real, &value->integer, sizeof real.real);
        text.bytes = (size_t)snprintf(hex, BITS_SIZE, "0x%016" PRIx64, (uint64_t)value->integer);
        text.data = hex;
    }
    push_column(e, name, value ? &real : NULL);
    if (bits)
        push_column(e, column, value ? &text : NULL);
}

static void expand_row(expanded_row *out, const char *const *columns,
                       const invar_ledger_value *values, int count, bool bits)
{
    out->count = 0;
    for (int c = 0; c < count; c++) {
        const char *suffix = strstr(columns[c], "_bits");
        if (suffix && suffix[strlen("_bits")] == '\0')
            push_double(out, columns[c], values ? &values[c] : NULL, bits);
        else
            push_column(out, columns[c], values ? &values[c] : NULL);
    }
}

/* ---- defaults -------------------------------------------------------------------------------- */

static const invar_ledger_value *column(const char *name, const char *const *columns,
                                        const invar_ledger_value *values, int count)
{
    for (int c = 0; c < count; c++)
        if (strcmp(columns[c], name) == 0 && values[c].type == INVAR_LEDGER_TYPE_TEXT)
            return &values[c];
    return NULL;
}

static bool is_text(const invar_ledger_value *value, const char *text)
{
    return value && value->bytes == strlen(text) && memcmp(value->data, text, value->bytes) == 0;
}

/* Returns true for a recipe key with its default value, or an op in its first revision. */
static bool is_default(const char *const *columns, const invar_ledger_value *values, int count)
{
    const invar_recipe_schema *schema = invar_config_schema();
    const invar_ledger_value *scope = column("scope", columns, values, count);
    const invar_ledger_value *key = column("key", columns, values, count);
    const invar_ledger_value *value = column("value", columns, values, count);

    if (is_text(scope, "op"))
        return is_text(value, "1");
    if (scope && !is_text(scope, "free"))
        return false;
    for (int i = 0; i < schema->count; i++)
        if (is_text(key, schema->keys[i].name))
            return schema->keys[i].default_text && is_text(value, schema->keys[i].default_text);
    return false;
}

static invar_status add_row(void *payload, const char *const *columns,
                            const invar_ledger_value *values, int count)
{
    char place[INVAR_LOCATE_PATH_SIZE];
    section_sink *s = payload;
    expanded_row e;
    json_t *row;

    if (values && !s->array && s->section->which != WHICH_ALL &&
        is_default(columns, values, count) != (s->section->which == WHICH_DEFAULT))
        return INVAR_OK;
    s->count += values != NULL;
    expand_row(&e, columns, values, count, s->array || (s->section->bits && s->exact));
    if (values)
        invar_locate_checkpoint(e.values, place, e.columns, e.count, s->ledger);
    if (!s->array)
        return invar_row_writer_take(s->rows, e.columns, values ? e.values : NULL, e.count);
    if (!values)
        return INVAR_OK;
    INVAR_TRY(invar_json_row(&row, e.columns, e.values, e.count));
    return json_array_append_new(s->array, row) == 0
               ? INVAR_OK
               : INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for the rows");
}

/* ---- sections -------------------------------------------------------------------------------- */

static invar_status select_rows(section_sink *s, const invar_located *at, int64_t step,
                                bool samples)
{
    const invar_ledger_argument arguments[] = {
        {"run", {.type = INVAR_LEDGER_TYPE_INT, .integer = at->run.run}},
        {"step", {.type = INVAR_LEDGER_TYPE_INT, .integer = step}},
        {"limit", {.type = INVAR_LEDGER_TYPE_INT, .integer = s->array ? -1 : LAST}},
        {"samples", {.type = INVAR_LEDGER_TYPE_INT, .integer = samples}},
    };

    return invar_ledger_select(at->ledger, &(invar_ledger_select_request){.sql = s->section->sql,
                                                                          .arguments = arguments,
                                                                          .n_arguments = 4,
                                                                          .row = add_row,
                                                                          .payload = s});
}

/*
 * Prints a section unless it is empty. Sections of default values are only counted without --all.
 */
static invar_status print_section(int64_t *hidden, const section *what, const invar_located *at,
                                  int64_t step, const settings *how)
{
    bool exact = how->exact, hide = what->which == WHICH_DEFAULT && !how->all;
    section_sink s = {.section = what, .ledger = at->path, .exact = exact};
    invar_status status;

    INVAR_TRY(invar_row_writer_new(
        &s.rows, stdout, exact ? INVAR_ROW_WRITER_FORMAT_EXACT : INVAR_ROW_WRITER_FORMAT_TABLE));
    status = select_rows(&s, at, step, !how->no_samples);
    *hidden += hide ? s.count : 0;
    if (status == INVAR_OK && s.count > 0 && !hide) {
        bool color = invar_term_has_color(stdout);
        printf("\n%s%s%s\n", invar_term_escape(color, INVAR_TERM_STYLE_CYAN), what->name,
               invar_term_escape(color, INVAR_TERM_STYLE_PLAIN));
        status = invar_row_writer_end(s.rows);
    }
    invar_row_writer_free(s.rows);
    return status;
}

/* Adds a section to the JSON object. Its name has no "last", because JSON has all rows. */
static invar_status add_section(json_t *object, const section *what, const invar_located *at,
                                int64_t step, const settings *how)
{
    const char *name = what->name;
    section_sink s = {.section = what, .ledger = at->path, .array = json_array()};
    bool last = strncmp(name, "last ", 5) == 0;

    if (what->which == WHICH_DEFAULT) {
        json_decref(s.array);
        return INVAR_OK;
    }
    if (json_object_set_new(object, last ? name + 5 : name, s.array) != 0)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for the rows");
    return select_rows(&s, at, step, !how->no_samples);
}

/* ---- the command ----------------------------------------------------------------------------- */

static invar_status check_step(const invar_located *at, int64_t step)
{
    if (at->run.last_step < 0)
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0, "run %.8s has no step yet", at->run.uuid);
    if (step < at->run.first_step || step > at->run.last_step)
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                          "run %.8s has no step %" PRId64 ", but %" PRId64 " to %" PRId64,
                          at->run.uuid, step, at->run.first_step, at->run.last_step);
    return INVAR_OK;
}

static void print_fact(const char *key, const char *value)
{
    printf("%-10s ", key);
    invar_safe_text_print(stdout, value);
    putchar('\n');
}

static void print_digest(const char *key, const invar_digest *digest)
{
    char hex[INVAR_DIGEST_HEX_SIZE];

    invar_digest_format(hex, digest);
    print_fact(key, hex);
}

/* Prints "llama, 30 layers, hidden size 576, 134515008 parameters" and the hash of the weights. */
static void print_model(const json_t *model)
{
    static const struct {
        const char *member, *before, *after;
    } numbers[] = {{"layers", "", " layer"},
                   {"hidden_size", "hidden size ", ""},
                   {"parameters", "", " parameter"}};
    const char *family = json_string_value(json_object_get(model, "family"));
    const char *weights = json_string_value(json_object_get(model, "weights"));

    printf("%-10s ", "model");
    invar_safe_text_print(stdout, family ? family : "not recorded");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const json_t *value = json_object_get(model, numbers[i].member);
        if (json_is_integer(value))
            printf(", %s%" JSON_INTEGER_FORMAT "%s%s", numbers[i].before, json_integer_value(value),
                   numbers[i].after,
                   numbers[i].after[0] ? invar_text_plural(json_integer_value(value)) : "");
    }
    putchar('\n');
    print_fact("weights", weights ? weights : "not recorded");
}

/* Warns about steps that were executed again with equal bits and different content. */
static invar_status print_other_content(const invar_located *at)
{
    json_t *row;
    int64_t steps;

    INVAR_TRY(invar_run_row(&row, at->ledger, at->run.run,
                            "SELECT count(DISTINCT step) AS steps FROM event WHERE "
                            "run = :run AND kind = 'content-differs'"));
    steps = json_integer_value(json_object_get(row, "steps"));
    json_decref(row);
    if (steps > 0)
        printf("%-10s %" PRId64 " step%s executed again: the same bits, but other metrics, samples "
               "or replies\n",
               "warning", steps, invar_text_plural(steps));
    return INVAR_OK;
}

static void print_run(const invar_located *at, const char *state, const char *resume,
                      const json_t *model)
{
    char text[INVAR_SAFE_TEXT_TIME_SIZE];

    print_fact("name", at->run.name);
    print_fact("uuid", at->run.uuid);
    print_fact("kind", at->run.kind);
    if (at->run.parent[0])
        printf("%-10s from run %.8s, after step %" PRId64 "\n", "forked", at->run.parent,
               at->run.fork_step);
    printf("%-10s %s", "state", state);
    if (at->run.finished)
        printf(", exit code %" PRId64, at->run.exit_code);
    printf("%s\n%-10s %" PRId64, resume, "steps", invar_run_steps(&at->run));
    if (at->run.last_step >= 0)
        printf(", %" PRId64 " to %" PRId64, at->run.first_step, at->run.last_step);
    printf("\n%-10s %" PRId64 "\n", "entries", at->run.entries);
    invar_safe_text_time(text, at->run.created_ns);
    print_fact("created", text);
    invar_safe_text_time(text, at->run.updated_ns);
    print_fact("updated", text);
    print_model(model);
    print_digest("identity", &at->run.identity);
    print_digest("chain", &at->run.chain);
    print_digest("integrity", &at->run.integrity);
    print_fact("ledger", at->path);
}

static invar_status show_json(const invar_located *at, const char *state, const section *sections,
                              int64_t step, const settings *s)
{
    json_t *run = invar_run_json(at->path, &at->run, state), *model;
    json_t *out = json_pack("{s:o}", "run", run);
    invar_status status = invar_run_row(&model, at->ledger, at->run.run, invar_ledger_model_sql);

    if (status == INVAR_OK && json_object_set_new(run, "model", model) != 0)
        status = INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for the model");
    if (s->step >= 0 && out && json_object_set_new(out, "step", json_integer(s->step)) != 0)
        status = INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for the step");
    for (; out && sections->name && status == INVAR_OK; sections++)
        status = add_section(out, sections, at, step, s);
    if (status == INVAR_OK)
        return invar_json_write(stdout, out);
    json_decref(out);
    return status;
}

static invar_status show_run(const invar_located *at, const char *word, const settings *s)
{
    const section *sections = s->step >= 0 ? of_step : of_run;
    int64_t step = s->step >= 0 ? s->step : at->run.last_step, hidden = 0;
    char rest[64], resume[INVAR_RUN_RESUME_SIZE] = "";
    const char *state;
    json_t *model;

    if (s->step >= 0)
        INVAR_TRY(check_step(at, s->step));
    INVAR_TRY(invar_run_state(&state, at->path, &at->run));
    if (s->json)
        return show_json(at, state, sections, step, s);
    if (s->step < 0) {
        if (strcmp(state, "running") != 0)
            INVAR_TRY(invar_run_resume(resume, at->ledger, &at->run));
        INVAR_TRY(invar_run_row(&model, at->ledger, at->run.run, invar_ledger_model_sql));
        print_run(at, state, resume, model);
        json_decref(model);
        INVAR_TRY(print_other_content(at));
    } else {
        printf("step %" PRId64 " of ", step);
        invar_safe_text_print(stdout, at->run.name);
        fputs(", run ", stdout);
        invar_safe_text_print(stdout, at->run.uuid);
        putchar('\n');
    }
    for (; sections->name; sections++)
        INVAR_TRY(print_section(&hidden, sections, at, step, s));
    if (hidden > 0)
        printf(hidden == 1 ? "\n%" PRId64 " key or op stands at its default; --all shows it\n"
                           : "\n%" PRId64
                             " keys and ops stand at their defaults; --all shows them\n",
               hidden);
    putchar('\n');
    snprintf(rest, sizeof rest, "--step %" PRId64, step);
    if (s->step < 0 && step >= 0)
        invar_print_next(stdout, "ledger show", word, s->ledger, rest);
    else
        invar_print_next(stdout, "ledger verify", word, s->ledger, NULL);
    return INVAR_OK;
}

static settings given = {.step = -1};

static const invar_option options[] = {
    {.name = "step",
     .type = INVAR_OPTION_INT,
     .value = &given.step,
     .metavar = "S",
     .help = "show everything about this step",
     .high = INT64_MAX},
    INVAR_OPTION_LEDGER(&given.ledger),
    INVAR_OPTION_JSON(&given.json),
    INVAR_OPTION_EXACT(&given.exact),
    {.name = "all", .value = &given.all, .help = "also show keys at their default"},
    {.name = "no-samples",
     .value = &given.no_samples,
     .help = "leave out the beginnings of plug-in replies"},
    {0},
};

static int cmd_ledger_show(int argc, char **argv)
{
    invar_located at;
    invar_status status;

    (void)argc;
    if (invar_locate_run(&at, argv[0], given.ledger) != INVAR_OK)
        return invar_report_error();
    status = show_run(&at, argv[0], &given);
    invar_located_close(&at);
    return invar_exit(status);
}

const invar_cli_command invar_cmd_ledger_show = {
    .name = "show",
    .summary = "show a run or one of its steps",
    .run = cmd_ledger_show,
    .about =
        "Shows a run: its identity, its latest metrics, the keys that differ from their defaults,\n"
        "its segments and how they ended, checkpoints, events, seals, and where it ran. --all\n"
        "also shows keys at their default.\n"
        "\n"
        "With --step it shows that step: hashes, metrics (with --exact also their bits), the\n"
        "digest of every point and how many ranks disagree with it, statistics, samples, plug-in\n"
        "replies, timings, what each rank did. --json prints everything. --no-samples leaves\n"
        "out how the replies of plug-ins begin, which may be texts of samples.\n",
    .options = options,
    .words = "RUN",
    .max_words = 1,
    .result = RESULT,
    .arguments = "RUN [--step S] [--option value ...]"};
