/*
 * samples.c - adds the kept samples of a run to the report; their data are untrusted.
 *
 *   kept: {samples, steps, over}             number of kept samples, of their steps, and of chosen
 *                                            samples left out because of the byte limit
 *   samples: [{step, idx, prompt, finish, tokens,
 *              reward: bits, advantage: bits null for an SFT run
 *              parts: [[name, bits]],
 *              text                          text of the prompt
 *              label                         label of the prompt; null if not recorded
 *              response: [text]              one text per token
 *              logp: [n], credit: [n]        values per token in thousandths; null if not finite;
 *                                            credit is empty for an SFT run
 *              inserted: [at]                tokens that were not sampled
 *              cut: [at, count]}]            tokens left out before token `at`; null if none
 *
 * The samples with the 50 lowest and 50 highest rewards are chosen. In addition some of the steps
 * are chosen, evenly from first to last, and of each some samples, evenly by reward. A long
 * response is cut to its beginning and its end.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>

#include "ledger/internal.h"
#include "ledger/view/measured.h"
#include "ledger/view/report/internal.h"
#include "ledger/view/texts/texts.h"

#include "base/invar_banned.h"

enum {
    BYTES_OF_TOKEN = 32, // rough size of a token on the page, with its text and numbers
    LEAST_TOKENS = 64,
    MOST_TOKENS = 2048,
    TOKEN_TEXT = 200, // maximum bytes of a token's text
};

/* SQL: r is one of p positions that are spread evenly over the n positions from 0 to n - 1. */
#define EVENLY(r, n, p)                                                                            \
    "(" n " <= " p " OR " r " = 0 OR " r " * (" p " - 1) / (" n " - 1)"                            \
    " <> (" r " - 1) * (" p " - 1) / (" n " - 1))"

/*
 * SQL: the chosen samples of run ?1. Chosen are at least 20 steps, and more if fewer samples of
 * each are kept (400 / samples per step); about 500 samples of these steps; and 50 samples at each
 * end of the rewards, where NULL sorts first. MATERIALIZED, because evaluating the tables again for
 * every row takes minutes for a run of 10,000 steps.
 */
#define CHOSEN                                                                                     \
    "WITH ranked AS MATERIALIZED (SELECT k.step, k.idx,"                                           \
    "  row_number() OVER (PARTITION BY k.step ORDER BY s.reward, k.idx) - 1 AS r,"                 \
    "  count(*) OVER (PARTITION BY k.step) AS n,"                                                  \
    "  min(row_number() OVER (ORDER BY s.reward, k.step, k.idx),"                                  \
    "   row_number() OVER (ORDER BY s.reward DESC, k.step, k.idx)) <= 50 AS extreme"               \
    "  FROM kept_samples k JOIN samples s USING(run, step, idx) WHERE run = ?1),"                  \
    " places AS (SELECT step, row_number() OVER (ORDER BY step) - 1 AS r, count(*) OVER () AS n,"  \
    "  max(20, 400 / max(max(n)) OVER ()) AS wanted FROM ranked GROUP BY step),"                   \
    " steps AS MATERIALIZED (SELECT step, 500 / min(n, wanted) AS each FROM places"                \
    "  WHERE " EVENLY("r", "n", "wanted") "),"                                                     \
                                          " chosen AS MATERIALIZED (SELECT ranked.* FROM ranked "  \
                                          "LEFT JOIN steps USING(step)"                            \
                                          "  WHERE extreme OR (each IS NOT NULL AND " EVENLY(      \
                                              "r", "n", "each") "))"

static const char totals[] = CHOSEN " SELECT (SELECT count(*) FROM chosen) AS chosen,"
                                    " count(*) AS samples, count(DISTINCT step) AS steps,"
                                    " 0 AS over FROM ranked";

/* SQL: ordered so that the byte limit leaves out samples of every step before any extreme. */
static const char rows[] =
    CHOSEN " SELECT c.step, c.idx, k.data, x.prompt, x.reward_bits, x.advantage_bits, x.finish,"
           " x.tokens - x.prompt_tokens, " INVAR_MEASURED_ANSWERS " FROM chosen c"
           " JOIN kept_samples k ON k.run = ?1 AND k.step = c.step AND k.idx = c.idx"
           " JOIN samples x ON x.run = ?1 AND x.step = c.step AND x.idx = c.idx"
           " ORDER BY c.extreme DESC, c.r, c.step";

static const char part_rows[] = "SELECT name, bits FROM reward_parts"
                                " WHERE run = ?1 AND step = ?2 AND idx = ?3 ORDER BY name";

typedef struct shelf {
    const invar_report_run *run;
    json_t *kept, *out, *damaged;
    int64_t chosen; /* number of chosen samples */
    size_t tokens;  /* maximum tokens of a response */
    int64_t unread; /* bytes that kept samples may still expand to */
    int64_t over;   /* number of samples left out because no bytes remained */
    invar_sql_stmt *parts;
} shelf;

static json_t *bits_of(invar_sql_stmt *row, int column)
{
    char text[INVAR_REPORT_BITS_DIGITS + 1];

    invar_report_bits(text, (uint64_t)invar_sql_int(row, column));
    return json_string(text);
}

/* ---- one sample ------------------------------------------------------------------------------ */

/* The tokens that are left out: [at, at + count). */
typedef struct gap {
    size_t at, count;
} gap;

static json_t *json_thousandths(const json_t *value)
{
    double number = json_is_null(value) ? (double)NAN : 1000 * json_number_value(value);

    return fabs(number) < 1e15 ? json_integer((json_int_t)llround(number)) : json_null();
}

static json_t *same_text(const json_t *value)
{
    return invar_report_text_within(json_string_value(value), json_string_length(value),
                                    TOKEN_TEXT);
}

/* Adds a list without the elements of the gap. */
static invar_status put_list(json_t *object, const char *key, const json_t *from, gap without,
                             json_t *(*make)(const json_t *value))
{
    json_t *list, *value;
    size_t i;

    INVAR_TRY(invar_report_member(&list, object, key, json_array()));
    json_array_foreach(from, i, value)
    {
        if (i < without.at || i >= without.at + without.count)
            INVAR_TRY(invar_report_append(list, make(value)));
    }
    return INVAR_OK;
}

static invar_status put_inserted(json_t *object, const json_t *drawn, gap without)
{
    json_t *list, *value;
    size_t i, place = 0;

    INVAR_TRY(invar_report_member(&list, object, "inserted", json_array()));
    json_array_foreach(drawn, i, value)
    {
        if (i >= without.at && i < without.at + without.count)
            continue;
        if (json_integer_value(value) == 0)
            INVAR_TRY(invar_report_append(list, json_integer((json_int_t)place)));
        place++;
    }
    return INVAR_OK;
}

/* Returns a text of the kept sample, or null if it does not have the text. */
static json_t *text_within(const json_t *text, size_t most)
{
    return text ? invar_report_text_within(json_string_value(text), json_string_length(text), most)
                : json_null();
}

/* Returns the label. One that was cut when it was kept is cut again, so that the page shows it. */
static json_t *label_within(const json_t *kept, size_t most)
{
    const json_t *label = json_object_get(kept, "label");
    size_t bytes = json_string_length(label);

    if (json_object_get(kept, "label_bytes") && bytes > 0 && bytes <= most)
        most = bytes - 1;
    return text_within(label, most);
}

static invar_status put_kept(json_t *object, const json_t *kept, size_t tokens)
{
    size_t all = json_array_size(json_object_get(kept, "response"));
    gap without = all <= tokens ? (gap){all, 0} : (gap){tokens / 2, all - tokens};

    INVAR_TRY(
        invar_report_set(object, "text", text_within(json_object_get(kept, "prompt"), 8 * tokens)));
    INVAR_TRY(invar_report_set(object, "label", label_within(kept, 8 * tokens)));
    INVAR_TRY(put_list(object, "response", json_object_get(kept, "response"), without, same_text));
    INVAR_TRY(put_list(object, "logp", json_object_get(kept, "logp"), without, json_thousandths));
    INVAR_TRY(
        put_list(object, "credit", json_object_get(kept, "advantage"), without, json_thousandths));
    INVAR_TRY(put_inserted(object, json_object_get(kept, "drawn"), without));
    return invar_report_set(object, "cut",
                            without.count == 0 ? json_null()
                                               : json_pack("[I, I]", (json_int_t)without.at,
                                                           (json_int_t)without.count));
}

invar_status invar_report_add_kept(json_t *object, const char **why_out, size_t *expanded_out,
                                   const void *data, size_t bytes, size_t tokens)
{
    invar_texts_sample kept;

    INVAR_TRY(invar_texts_read(&kept, data, bytes));
    *expanded_out = kept.bytes;
    *why_out = kept.why;
    invar_status status = kept.why ? INVAR_OK : put_kept(object, kept.members, tokens);
    invar_texts_release(&kept);
    return status;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static invar_status put_parts(json_t *object, shelf *s, invar_sql_stmt *row)
{
    json_t *list;
    invar_status status;

    INVAR_TRY(invar_report_member(&list, object, "parts", json_array()));
    status = INVAR_SQL_BIND(s->parts, s->run->run, invar_sql_int(row, 0), invar_sql_int(row, 1));
    while (invar_sql_next(&status, s->parts))
        status = invar_report_append(
            list, json_pack("[o, o]", invar_report_column(s->parts, 0), bits_of(s->parts, 1)));
    return status;
}

static invar_status take_sample(void *payload, invar_sql_stmt *row)
{
    static const char *const names[] = {"step", "idx", NULL,     "prompt",
                                        NULL,   NULL,  "finish", "tokens"};
    shelf *s = payload;
    const char *why;
    const bool answers = invar_sql_int(row, 8) != 0;
    size_t bytes, expanded;

    if (s->unread <= 0) {
        s->over++;
        return INVAR_OK;
    }
    json_t *object = json_object();
    INVAR_TRY(invar_report_append(s->out, object));
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++)
        if (names[i])
            INVAR_TRY(invar_report_set(object, names[i], invar_report_column(row, i)));
    INVAR_TRY(invar_report_set(object, "reward", answers ? json_null() : bits_of(row, 4)));
    INVAR_TRY(invar_report_set(object, "advantage", answers ? json_null() : bits_of(row, 5)));
    INVAR_TRY(put_parts(object, s, row));
    const void *data = invar_sql_blob(row, 2, &bytes);
    INVAR_TRY(invar_report_add_kept(object, &why, &expanded, data, bytes, s->tokens));
    s->unread -= (int64_t)expanded;
    if (!why)
        return answers ? invar_report_set(object, "credit", json_array()) : INVAR_OK;
    (void)json_array_remove(s->out, json_array_size(s->out) - 1);
    return invar_report_append(
        s->damaged, json_pack("{s:I, s:I, s:s}", "step", (json_int_t)invar_sql_int(row, 0), "idx",
                              (json_int_t)invar_sql_int(row, 1), "why", why));
}

static invar_status take_totals(void *payload, invar_sql_stmt *row)
{
    shelf *s = payload;

    s->chosen = invar_sql_int(row, 0);
    for (int i = 1; i < invar_sql_columns(row); i++)
        INVAR_TRY(
            invar_report_set(s->kept, invar_sql_column_name(row, i), invar_report_column(row, i)));
    return INVAR_OK;
}

invar_status invar_report_add_samples(json_t *run, const invar_report_run *from, size_t runs)
{
    shelf s = {.run = from};

    INVAR_TRY(invar_report_member(&s.kept, run, "kept", json_object()));
    INVAR_TRY(invar_report_member(&s.out, run, "samples", json_array()));
    INVAR_TRY(invar_report_member(&s.damaged, run, "damaged", json_array()));
    INVAR_TRY(invar_report_each(from, totals, take_totals, &s));
    if (s.chosen == 0 || runs == 0)
        return INVAR_OK;
    s.unread = INVAR_REPORT_EXPANDED_BYTES / (int64_t)runs;
    int64_t tokens = INVAR_REPORT_SAMPLE_BYTES / (int64_t)runs / s.chosen / BYTES_OF_TOKEN;
    s.tokens = tokens < LEAST_TOKENS  ? LEAST_TOKENS
               : tokens > MOST_TOKENS ? MOST_TOKENS
                                      : (size_t)tokens;
    INVAR_TRY(invar_sql_prepare(&s.parts, from->ledger->sql, part_rows));
    invar_status status = invar_report_each(from, rows, take_sample, &s);
    INVAR_TRY(invar_sql_end(s.parts, status));
    return invar_report_set(s.kept, "over", json_integer(s.over));
}
