/*
 * golden.c - goldens: builds them from runs, reads, writes and compares them, and keeps their
 * history.
 *
 * The text is the format: a golden is made by writing the text of a run and parsing it, so a golden
 * from a run and one from a file pass the same checks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/view/golden/golden.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "ledger/view/golden/internal.h"

#include "base/invar_banned.h"

#define WIDTH 100
#define MIN_STEP_BYTES 70 /* "0 CHAIN ROOT -\n" */

static const invar_golden_format format;

/* ---- writing --------------------------------------------------------------------------------- */

/* Writes an op with its revision, wrapping lines. *column is the width of the line, 0 at first. */
static invar_status put_op(invar_golden_buffer *out, size_t *column, const char *name,
                           const char *revision)
{
    size_t bytes = strlen(name) + strlen(revision) + 1;

    if (*column && *column + bytes + 3 <= WIDTH) {
        *column += bytes + 2;
        return invar_golden_putf(out, ", %s %s", name, revision);
    }
    INVAR_TRY(invar_golden_putf(out, "%sops %s %s", *column ? "\n" : "", name, revision));
    *column = bytes + 4;
    return INVAR_OK;
}

static invar_status put_step(invar_golden_buffer *out, int64_t step, const invar_golden_step *s)
{
    char chain[INVAR_DIGEST_HEX_SIZE], root[INVAR_DIGEST_HEX_SIZE], loss[20] = "-";

    invar_digest_format(chain, &s->chain);
    invar_digest_format(root, &s->root);
    if (s->has_loss)
        (void)snprintf(loss, sizeof loss, "%016" PRIx64, s->loss);
    return invar_golden_putf(out, "%" PRId64 " %s %s %s\n", step, chain, root, loss);
}

static invar_status put_head(invar_golden_buffer *out, const invar_golden *g)
{
    size_t column = 0;

    INVAR_TRY(invar_golden_put_begin(out, &format, g->name, &g->identity, &g->manifest));
    for (size_t i = 0; i < g->n_ops; i++)
        INVAR_TRY(put_op(out, &column, g->ops[i].name, g->ops[i].revision));
    return invar_golden_putf(out, "%sgenerator %s\n", column ? "\n" : "", g->generator);
}

static invar_status put_accepted(invar_golden_buffer *out, const invar_golden *g)
{
    for (size_t i = 0; i < g->n_accepted; i++)
        INVAR_TRY(invar_golden_putf(out, "accepted %zu: %s\n", i + 1, g->accepted[i]));
    return INVAR_OK;
}

static invar_status put_steps(invar_golden_buffer *out, const invar_golden *g)
{
    for (int64_t i = 0; i < g->n_steps; i++)
        INVAR_TRY(put_step(out, i, &g->steps[i]));
    return INVAR_OK;
}

static invar_status put_golden(invar_golden_buffer *out, const void *value)
{
    const invar_golden *g = value;

    INVAR_TRY(put_head(out, g));
    INVAR_TRY(put_accepted(out, g));
    return put_steps(out, g);
}

invar_status invar_golden_print(char **out, size_t *bytes_out, const invar_golden *golden)
{
    return invar_golden_format_print(out, bytes_out, &format, golden);
}

invar_status invar_golden_write(const char *path, const invar_golden *golden)
{
    return invar_golden_format_write(path, &format, golden);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Parses "NAME REVISION, NAME REVISION" in place. */
static invar_status parse_ops(invar_golden *g, const invar_golden_lines *lines, char *rest)
{
    while (rest) {
        char *comma = strstr(rest, ", "), *blank;
        if (comma)
            *comma = '\0';
        blank = strchr(rest, ' ');
        if (!blank || blank == rest || strchr(blank + 1, ' ') || blank[1] == '\0')
            return invar_golden_damaged(lines, "NAME REVISION, ...");
        *blank = '\0';
        if (g->n_ops == INVAR_GOLDEN_OPS ||
            (g->n_ops && strcmp(g->ops[g->n_ops - 1].name, rest) >= 0))
            return invar_golden_damaged(lines, "ops sorted by name");
        g->ops[g->n_ops++] = (invar_golden_op){.name = rest, .revision = blank + 1};
        rest = comma ? comma + 2 : NULL;
    }
    return INVAR_OK;
}

static invar_status parse_accepted(invar_golden *g, const invar_golden_lines *lines, char *rest)
{
    int64_t number;

    if (g->n_accepted == INVAR_GOLDEN_ACCEPTED || !invar_golden_parse_int(&number, &rest) ||
        strncmp(rest, ": ", 2) != 0 || rest[2] == '\0' || strlen(rest + 2) >= INVAR_GOLDEN_TEXT ||
        strchr(rest, '\t'))
        return invar_golden_damaged(lines, "accepted N: WHO, COMMIT, REASON");
    g->accepted[g->n_accepted++] = rest + 2; // the final comparison of the text checks the number
    return INVAR_OK;
}

static invar_status parse_step(invar_golden *g, const invar_golden_lines *lines)
{
    invar_golden_step *s = &g->steps[g->n_steps];
    invar_digest chain = g->n_steps ? s[-1].chain : (invar_digest){{0}};
    char *at = lines->line;
    int64_t step;

    if (!invar_golden_parse_int(&step, &at) || step != g->n_steps || strlen(at) < 68 ||
        at[33] != ' ' || at[66] != ' ')
        return invar_golden_damaged(lines, "STEP CHAIN ROOT LOSS");
    s->has_loss = strcmp(at + 67, "-") != 0;
    if (s->has_loss && strlen(at + 67) != 16)
        return invar_golden_damaged(lines, "STEP CHAIN ROOT LOSS");
    // the final comparison of the text finds other characters than digits
    s->loss = s->has_loss ? strtoull(at + 67, NULL, 16) : 0;
    at[33] = at[66] = '\0';
    if (invar_digest_parse(&s->chain, at + 1) != INVAR_OK ||
        invar_digest_parse(&s->root, at + 34) != INVAR_OK) {
        invar_error_clear();
        return invar_golden_damaged(lines, "STEP CHAIN ROOT LOSS");
    }
    invar_digest_chain(&chain, &s->root);
    if (!invar_digest_equal(&chain, &s->chain))
        return invar_golden_damaged(lines, "the chain that the roots give");
    g->n_steps++;
    return INVAR_OK;
}

/* Parses all lines; the parts must be in order, and nothing may follow them. */
static invar_status parse_lines(invar_golden *g, invar_golden_lines *lines)
{
    bool more;
    char *rest;

    INVAR_TRY(invar_golden_read_text(&g->name, lines, "name"));
    INVAR_TRY(invar_golden_read_digest(&g->identity, lines, "identity"));
    INVAR_TRY(invar_golden_read_digest(&g->manifest, lines, "manifest"));
    more = invar_golden_lines_next(lines);
    for (; more && (rest = invar_golden_after(lines, "ops")); more = invar_golden_lines_next(lines))
        INVAR_TRY(parse_ops(g, lines, rest));
    g->generator = more ? invar_golden_after(lines, "generator") : NULL;
    if (!g->generator || *g->generator == '\0' || strlen(g->generator) > INVAR_LEDGER_NAME_BYTES ||
        strchr(g->generator, '\t'))
        return invar_golden_damaged(lines, "generator");
    more = invar_golden_lines_next(lines);
    for (; more && (rest = invar_golden_after(lines, "accepted"));
         more = invar_golden_lines_next(lines))
        INVAR_TRY(parse_accepted(g, lines, rest));
    g->first_line = more ? lines->number : lines->number + 1;
    for (; more; more = invar_golden_lines_next(lines))
        INVAR_TRY(parse_step(g, lines));
    return INVAR_OK;
}

static invar_status parse_golden(void *value, const char *where, const char *text, size_t bytes)
{
    invar_golden *g = value;
    invar_golden_lines lines;

    INVAR_TRY(invar_golden_lines_open(&lines, &g->memory, &format, where, text, bytes));
    INVAR_TRY(INVAR_ALLOC(g->steps, bytes / MIN_STEP_BYTES + 1, format.what));
    return parse_lines(g, &lines);
}

invar_status invar_golden_parse(invar_golden **out, const char *where, const char *text,
                                size_t bytes)
{
    return invar_golden_format_parse((void **)out, &format, where, text, bytes);
}

invar_status invar_golden_read(invar_golden **out, const char *path)
{
    return invar_golden_format_read((void **)out, &format, path);
}

static void free_golden(void *value)
{
    invar_golden *golden = value;

    if (!golden)
        return;
    invar_free(golden->steps);
    invar_free(golden->memory);
    invar_free(golden);
}

void invar_golden_free(invar_golden *golden)
{
    free_golden(golden);
}

static const invar_golden_format format = {
    .magic = "# invar golden",
    .version = 2,
    .legend = "# one line a step: step, chain, root, bits of the loss (docs/formats.md)",
    .max_bytes = 16u << 20,
    .size = sizeof(invar_golden),
    .what = "a golden",
    .parse = parse_golden,
    .put = put_golden,
    .free = free_golden};

/* ---- from a run ------------------------------------------------------------------------------ */

typedef struct recording {
    invar_golden_buffer text;
    size_t column; /* width of the current line of ops */
    int64_t steps;
} recording;

static invar_status record_ops(recording *r, invar_ledger *ledger, int64_t run)
{
    invar_sql_stmt *row;
    invar_status status =
        INVAR_SQL_QUERY(&row, ledger->sql,
                        "SELECT key, value FROM fact WHERE run = ?1 AND scope = 'op' AND "
                        "seg = (SELECT max(seg) FROM segment WHERE run = ?1) ORDER BY key",
                        run);

    while (invar_sql_next(&status, row)) {
        const char *name = invar_sql_text(row, 0, NULL), *revision = invar_sql_text(row, 1, NULL);

        status = invar_sql_row(row);
        if (status == INVAR_OK &&
            (strpbrk(name, " ,\t\n") || !*revision || strpbrk(revision, " ,\t\n")))
            status = INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                                "golden: the op '%.60s' has no plain revision", name);
        if (status == INVAR_OK)
            status = put_op(&r->text, &r->column, name, revision);
    }
    return invar_sql_end(row, status);
}

static invar_status record_step(recording *r, invar_sql_stmt *row)
{
    invar_golden_step s;

    if (invar_sql_int(row, 0) != r->steps)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "golden: step %" PRId64 " is missing: only a run from its beginning can "
                          "be one",
                          r->steps);
    INVAR_TRY(invar_golden_blob(&s.chain, row, 1));
    INVAR_TRY(invar_golden_blob(&s.root, row, 2));
    s.has_loss = invar_sql_type(row, 3) == INVAR_LEDGER_TYPE_INT;
    s.loss = (uint64_t)invar_sql_int(row, 3);
    return put_step(&r->text, r->steps++, &s);
}

static invar_status record_run(recording *r, invar_ledger *ledger, const invar_ledger_summary *run,
                               const char *generator)
{
    static const char steps[] =
        "SELECT s.step, s.chain, s.root, m.value_bits FROM step s LEFT JOIN metric m ON "
        "m.run = s.run AND m.step = s.step AND m.seg = s.seg AND m.series = "
        "(SELECT series FROM series WHERE name = 'train/loss') WHERE s.run = ?1 AND s.seg = "
        "(SELECT max(t.seg) FROM step t WHERE t.run = s.run AND t.step = s.step) ORDER BY s.step";
    invar_digest manifest;
    int64_t number;
    invar_sql_stmt *row;
    invar_status status;

    INVAR_TRY(invar_golden_manifest(&number, &manifest, ledger, run->run));
    INVAR_TRY(invar_golden_put_begin(&r->text, &format, run->name, &run->identity, &manifest));
    INVAR_TRY(record_ops(r, ledger, run->run));
    INVAR_TRY(invar_golden_putf(&r->text, "%sgenerator %s\n", r->column ? "\n" : "", generator));
    status = INVAR_SQL_QUERY(&row, ledger->sql, steps, run->run);
    while (invar_sql_next(&status, row))
        status = record_step(r, row);
    return invar_sql_end(row, status);
}

invar_status invar_golden_from_run(invar_golden **out, invar_ledger *ledger, int64_t run,
                                   const char *generator)
{
    invar_ledger_summary summary;
    recording r = {0};
    invar_status status;

    INVAR_TRY(invar_ledger_find_number(&summary, ledger, run));
    status = record_run(&r, ledger, &summary, generator);
    if (status == INVAR_OK)
        status = invar_golden_parse(out, summary.name, r.text.data, (size_t)r.text.used);
    invar_free(r.text.data);
    return status;
}

/* ---- history --------------------------------------------------------------------------------- */

invar_status invar_golden_accept(invar_golden **out, const invar_golden *golden,
                                 const invar_golden *before, const char *entry)
{
    invar_golden_buffer text = {0};
    invar_status status = put_head(&text, golden);

    if (status == INVAR_OK && before)
        status = put_accepted(&text, before);
    if (status == INVAR_OK && entry)
        status = invar_golden_putf(&text, "accepted %zu: %s\n",
                                   before ? before->n_accepted + 1 : (size_t)1, entry);
    if (status == INVAR_OK)
        status = put_steps(&text, golden);
    if (status == INVAR_OK)
        status = invar_golden_parse(out, golden->name, text.data, (size_t)text.used);
    invar_free(text.data);
    return status;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static void add_op_change(invar_golden_comparison *out, const char *name, const char *was,
                          const char *is)
{
    if (out->ops_differ < INVAR_GOLDEN_SHOWN)
        out->ops[out->ops_differ] =
            (invar_golden_op_change){.name = name, .old_revision = was, .new_revision = is};
    out->ops_differ++;
}

static void compare_ops(invar_golden_comparison *out, const invar_golden *was,
                        const invar_golden *is)
{
    size_t a = 0, b = 0;

    while (a < was->n_ops || b < is->n_ops) {
        const invar_golden_op *x = a < was->n_ops ? &was->ops[a] : NULL;
        const invar_golden_op *y = b < is->n_ops ? &is->ops[b] : NULL;
        int order = !x ? 1 : !y ? -1 : strcmp(x->name, y->name);
        if (order < 0)
            add_op_change(out, x->name, x->revision, NULL);
        else if (order > 0)
            add_op_change(out, y->name, NULL, y->revision);
        else if (strcmp(x->revision, y->revision) != 0)
            add_op_change(out, x->name, x->revision, y->revision);
        a += order <= 0;
        b += order >= 0;
    }
}

void invar_golden_compare(invar_golden_comparison *out, const invar_golden *was,
                          const invar_golden *is)
{
    *out = (invar_golden_comparison){
        .compared = was->n_steps < is->n_steps ? was->n_steps : is->n_steps,
        .steps = was->n_steps,
        .first = -1,
        .same_identity = invar_digest_equal(&was->identity, &is->identity),
        .same_manifest = invar_digest_equal(&was->manifest, &is->manifest)};
    for (int64_t i = 0; i < out->compared && out->first < 0; i++) {
        const invar_golden_step *a = &was->steps[i], *b = &is->steps[i];
        bool chain = invar_digest_equal(&a->chain, &b->chain);
        if (chain && a->has_loss == b->has_loss && (!a->has_loss || a->loss == b->loss))
            continue;
        out->first = i;
        out->only_loss = chain;
    }
    compare_ops(out, was, is);
    out->verdict = out->first >= 0 ? INVAR_GOLDEN_CHANGED
                   : out->compared ? INVAR_GOLDEN_SAME
                                   : INVAR_GOLDEN_NOTHING;
}

/* ---- both files ------------------------------------------------------------------------------ */

/* Adds the history of the golden at `path` to *golden; none if that golden cannot be read. */
static invar_status keep_history(invar_golden **golden, const char *path)
{
    invar_golden *before = NULL, *with = NULL;
    invar_status status = invar_golden_read(&before, path);

    if (status != INVAR_OK && status != INVAR_E_NOMEM) {
        invar_error_clear();
        return INVAR_OK;
    }
    if (status == INVAR_OK)
        status = invar_golden_accept(&with, *golden, before, NULL);
    invar_golden_free(before);
    if (status != INVAR_OK)
        return status;
    invar_golden_free(*golden);
    *golden = with;
    return INVAR_OK;
}

invar_status invar_golden_check_output(const char *path)
{
    char beside[INVAR_PATH_SIZE];

    INVAR_TRY(invar_golden_points_path(beside, sizeof beside, path));
    if (invar_text_has_suffix(path, ".points"))
        return INVAR_FAIL(
            INVAR_E_INVALID, 0,
            "%.1000s: a file of this name has the points of a golden, beside it; give "
            "another name",
            path);
    INVAR_TRY(invar_path_check_writable(path));
    INVAR_TRY(invar_path_check_output(path, format.magic, 0));
    return invar_path_check_output(beside, format.magic, 0); // the magic of points begins with it
}

invar_status invar_golden_record(const char *path, invar_ledger *ledger, int64_t run,
                                 const char *generator)
{
    invar_golden *golden = NULL;
    invar_golden_points *points = NULL;
    char beside[INVAR_PATH_SIZE];
    invar_status status;

    INVAR_TRY(invar_golden_points_path(beside, sizeof beside, path));
    status = invar_golden_from_run(&golden, ledger, run, generator);
    if (status == INVAR_OK)
        status = invar_golden_points_of_run(&points, ledger, run);
    if (status == INVAR_OK)
        status = keep_history(&golden, path);
    if (status == INVAR_OK) // points are written first: those of another golden are ignored
        status = invar_golden_points_write(beside, points);
    if (status == INVAR_OK)
        status = invar_golden_write(path, golden);
    invar_golden_points_free(points);
    invar_golden_free(golden);
    return status;
}
