/*
 * points_file.c - reads and writes the points of a golden, and builds them from a run.
 *
 * The file has a line per point of level 0 and a line of digits per recorded step: the first 100
 * steps, then every 20th, as long as they fit into 8 MiB. It belongs to the golden with the same
 * last chain.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/sort.h"
#include "base/text.h"
#include "ledger/view/golden/internal.h"

#include "base/invar_banned.h"

#define MAX_POINTS (1u << 17)
#define MIN_POINT_BYTES 18 /* nine fields of one byte, each with a separator */
#define MIN_STEP_BYTES 8   /* "step 0 \n" */

/* Recorded steps: all below ALL_BELOW, then every THEN_EVERY-th, as long as they fit. */
#define ALL_BELOW 100
#define THEN_EVERY 20
#define STEPS_BYTES (8u << 20)

static const invar_golden_format format;

/* ---- writing --------------------------------------------------------------------------------- */

static invar_status put_head(invar_golden_buffer *out, const invar_golden_points *p)
{
    char hex[INVAR_DIGEST_HEX_SIZE];

    INVAR_TRY(invar_golden_put_begin(out, &format, p->name, &p->identity, &p->manifest));
    invar_digest_format(hex, &p->chain);
    if (p->last_step < 0)
        return invar_golden_putf(out, "chain -\n");
    return invar_golden_putf(out, "chain %" PRId64 " %s\n", p->last_step, hex);
}

static invar_status put_points(invar_golden_buffer *out, const void *value)
{
    const invar_golden_points *p = value;

    INVAR_TRY(put_head(out, p));
    for (const invar_golden_point *q = p->points; q < p->points + p->n_points; q++) {
        char layer[24] = "-";

        if (q->layer >= 0)
            (void)snprintf(layer, sizeof layer, "%" PRId64, q->layer);
        INVAR_TRY(invar_golden_putf(out, "%" PRId64 "\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", q->ord,
                                    q->name, q->phase, layer, q->op, q->kind, q->dtype, q->shape,
                                    q->inputs));
    }
    for (size_t i = 0; i < p->n_values; i++)
        INVAR_TRY(invar_golden_putf(out, "step %" PRId64 " %s\n", p->values[i].step,
                                    p->values[i].digits));
    return INVAR_OK;
}

invar_status invar_golden_points_print(char **out, size_t *bytes_out,
                                       const invar_golden_points *points)
{
    return invar_golden_format_print(out, bytes_out, &format, points);
}

invar_status invar_golden_points_write(const char *path, const invar_golden_points *points)
{
    return invar_golden_format_write(path, &format, points);
}

/* ---- reading --------------------------------------------------------------------------------- */

static invar_status parse_chain(invar_golden_points *p, invar_golden_lines *lines)
{
    const char *text;
    char *at;

    INVAR_TRY(invar_golden_read_text(&text, lines, "chain"));
    p->last_step = -1;
    if (strcmp(text, "-") == 0)
        return INVAR_OK;
    at = invar_golden_after(lines, "chain");
    if (!invar_golden_parse_int(&p->last_step, &at) || *at != ' ' ||
        invar_digest_parse(&p->chain, at + 1) != INVAR_OK) {
        invar_error_clear();
        return invar_golden_damaged(lines, "chain STEP CHAIN");
    }
    return INVAR_OK;
}

/* True if the text is "-", or a list of ords of earlier points, ascending. */
static bool good_inputs(const invar_golden_points *p, char *text)
{
    int64_t ord, last = -1;

    if (strcmp(text, "-") == 0)
        return true;
    for (char *at = text;; at++) {
        if (!invar_golden_parse_int(&ord, &at) || ord <= last ||
            invar_binary_search(p->points, (int64_t)p->n_points, sizeof *p->points,
                                offsetof(invar_golden_point, ord), ord) < 0)
            return false;
        last = ord;
        if (*at == '\0')
            return true;
        if (*at != ',')
            return false;
    }
}

#define FIELDS 9

/* Splits the line at tabs into exactly FIELDS texts; false if one is empty or too long. */
static bool split_fields(char *fields[FIELDS], char *line)
{
    for (int i = 0; i < FIELDS; i++) {
        char *tab = strchr(line, '\t');
        fields[i] = line;
        if ((tab != NULL) == (i == FIELDS - 1))
            return false;
        if (tab)
            *tab = '\0';
        if (*line == '\0' || (tab && strlen(line) > INVAR_LEDGER_NAME_BYTES))
            return false;
        line = tab ? tab + 1 : NULL;
    }
    return true;
}

static invar_status parse_point(invar_golden_points *p, const invar_golden_lines *lines)
{
    invar_golden_point *point = &p->points[p->n_points];
    int64_t last = p->n_points ? point[-1].ord : -1;
    char *f[FIELDS];

    if (p->n_points == MAX_POINTS)
        return invar_golden_damaged(lines, "fewer points");
    if (!split_fields(f, lines->line) || !invar_golden_parse_int(&point->ord, &f[0]) || *f[0] ||
        point->ord <= last)
        return invar_golden_damaged(lines, "a point");
    point->layer = -1;
    if (strcmp(f[3], "-") != 0 && (!invar_golden_parse_int(&point->layer, &f[3]) || *f[3]))
        return invar_golden_damaged(lines, "a point's layer");
    if (!good_inputs(p, f[8]))
        return invar_golden_damaged(lines, "a point's inputs");
    point->name = f[1];
    point->phase = f[2];
    point->op = f[4];
    point->kind = f[5];
    point->dtype = f[6];
    point->shape = f[7];
    point->inputs = f[8];
    p->n_points++;
    return INVAR_OK;
}

static invar_status parse_values(invar_golden_points *p, const invar_golden_lines *lines)
{
    invar_golden_values *v = &p->values[p->n_values];
    int64_t last = p->n_values ? v[-1].step : -1;
    char *at = invar_golden_after(lines, "step");

    if (!at || !invar_golden_parse_int(&v->step, &at) || *at != ' ' || v->step <= last ||
        v->step > p->last_step || strlen(at + 1) != INVAR_GOLDEN_DIGITS * p->n_points ||
        strspn(at + 1, "0123456789abcdef") != INVAR_GOLDEN_DIGITS * p->n_points)
        return invar_golden_damaged(lines, "step N and 8 digits of each point");
    v->digits = at + 1;
    p->n_values++;
    return INVAR_OK;
}

static invar_status parse_lines(invar_golden_points *p, invar_golden_lines *lines)
{
    bool more;

    INVAR_TRY(invar_golden_read_text(&p->name, lines, "name"));
    INVAR_TRY(invar_golden_read_digest(&p->identity, lines, "identity"));
    INVAR_TRY(invar_golden_read_digest(&p->manifest, lines, "manifest"));
    INVAR_TRY(parse_chain(p, lines));
    more = invar_golden_lines_next(lines);
    for (; more && !invar_golden_after(lines, "step"); more = invar_golden_lines_next(lines))
        INVAR_TRY(parse_point(p, lines));
    for (; more; more = invar_golden_lines_next(lines))
        INVAR_TRY(parse_values(p, lines));
    return INVAR_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const invar_golden_point *)a)->name, ((const invar_golden_point *)b)->name);
}

invar_status invar_golden_sort_points(const invar_golden_point ***out, const invar_golden_points *p)
{
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(*out, p->n_points, "points by name"));
    for (size_t i = 0; i < p->n_points; i++)
        (*out)[i] = &p->points[i];
    status = invar_sort((const void **)*out, p->n_points, by_name);
    if (status != INVAR_OK)
        invar_free(*out);
    return status;
}

static invar_status check_names(const invar_golden_points *p, const invar_golden_lines *lines)
{
    const invar_golden_point **sorted;
    bool twice = false;

    INVAR_TRY(invar_golden_sort_points(&sorted, p));
    for (size_t i = 1; i < p->n_points; i++)
        twice = twice || strcmp(sorted[i - 1]->name, sorted[i]->name) == 0;
    invar_free(sorted);
    return twice ? invar_golden_damaged(lines, "each point once before it") : INVAR_OK;
}

static invar_status parse_golden_points(void *value, const char *where, const char *text,
                                        size_t bytes)
{
    size_t points = bytes / MIN_POINT_BYTES + 1, steps = bytes / MIN_STEP_BYTES + 1;
    invar_golden_points *p = value;
    invar_golden_lines lines;

    INVAR_TRY(invar_golden_lines_open(&lines, &p->memory, &format, where, text, bytes));
    points = points < MAX_POINTS ? points : MAX_POINTS;
    INVAR_TRY(INVAR_ALLOC(p->points, points, format.what));
    INVAR_TRY(INVAR_ALLOC(p->values, steps, "their values"));
    INVAR_TRY(parse_lines(p, &lines));
    return check_names(p, &lines);
}

invar_status invar_golden_points_parse(invar_golden_points **out, const char *where,
                                       const char *text, size_t bytes)
{
    return invar_golden_format_parse((void **)out, &format, where, text, bytes);
}

static void free_points(void *value)
{
    invar_golden_points *points = value;

    if (!points)
        return;
    invar_free(points->points);
    invar_free(points->values);
    invar_free(points->memory);
    invar_free(points);
}

void invar_golden_points_free(invar_golden_points *points)
{
    free_points(points);
}

static const invar_golden_format format = {
    .magic = "# invar golden points",
    .version = 1,
    .legend =
        "# points: number, name, phase, layer, op, kind, dtype, shape, inputs; then their digests",
    .max_bytes = 64u << 20,
    .size = sizeof(invar_golden_points),
    .what = "the points of a golden",
    .parse = parse_golden_points,
    .put = put_points,
    .free = free_points};

invar_status invar_golden_points_beside(invar_golden_points **out, const invar_golden *golden,
                                        const char *path)
{
    char beside[INVAR_PATH_SIZE];
    invar_status status;

    *out = NULL;
    INVAR_TRY(invar_golden_points_path(beside, sizeof beside, path));
    status = invar_golden_format_read((void **)out, &format, beside);
    if (status == INVAR_E_NOTFOUND) {
        invar_error_clear();
        return INVAR_OK;
    }
    // points of an older or newer version of the golden do not count
    if (status == INVAR_OK &&
        ((*out)->last_step != golden->n_steps - 1 ||
         !invar_digest_equal(&(*out)->identity, &golden->identity) ||
         (golden->n_steps > 0 &&
          !invar_digest_equal(&(*out)->chain, &golden->steps[golden->n_steps - 1].chain)))) {
        invar_golden_points_free(*out);
        *out = NULL;
    }
    return status;
}

invar_status invar_golden_points_path(char *out, size_t size, const char *golden)
{
    static const char ending[] = ".golden", new_ending[] = ".golden.new";
    size_t length = strlen(golden), cut_off = 0;
    bool renewed = invar_text_has_suffix(golden, new_ending) && length > strlen(new_ending);
    int written;

    if (renewed || (invar_text_has_suffix(golden, ending) && length > strlen(ending)))
        cut_off = renewed ? strlen(new_ending) : strlen(ending);
    written = snprintf(out, size, "%.*s.points%s", (int)(length - cut_off), golden,
                       renewed ? ".new" : "");
    if (written < 0 || (size_t)written >= size)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "the path is too long: %.1000s", golden);
    return INVAR_OK;
}

/* ---- from a run ------------------------------------------------------------------------------ */

typedef struct recording {
    invar_golden_buffer text;
    int64_t *ords;     /* (n) ords of the points so far */
    int64_t n, room;   /* number of points, and capacity */
    size_t step_bytes; /* bytes of all steps so far */
    size_t digests;    /* number of digests that the data of a step must have at least */
} recording;

static invar_status record_point(recording *r, invar_sql_stmt *row)
{
    int64_t ord = invar_sql_int(row, 0);

    if (ord < (int64_t)r->digests)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "golden: the points of the ledger are damaged");
    for (int i = 0; i < FIELDS; i++)
        INVAR_TRY(invar_golden_putf(
            &r->text, "%s%s", i ? "\t" : "",
            invar_sql_type(row, i) == INVAR_LEDGER_TYPE_NULL ? "-" : invar_sql_text(row, i, NULL)));
    INVAR_TRY(invar_sql_row(row));
    INVAR_TRY(invar_golden_put(&r->text, "\n", 1));
    if (r->n == MAX_POINTS)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "golden: more than %u points", MAX_POINTS);
    INVAR_TRY(INVAR_GROW(r->ords, r->room, r->n, r->n + 1, "the points of a golden"));
    r->ords[r->n++] = ord;
    r->digests = (size_t)ord + 1;
    return INVAR_OK;
}

static invar_status put_values(recording *r, int64_t step, const uint8_t *data)
{
    static const char digits[] = "0123456789abcdef";

    INVAR_TRY(invar_golden_putf(&r->text, "step %" PRId64 " ", step));
    for (int64_t i = 0; i < r->n; i++) {
        const uint8_t *digest = data + r->ords[i] * (int64_t)sizeof(invar_digest);
        char hex[INVAR_GOLDEN_DIGITS];
        for (size_t k = 0; k < INVAR_GOLDEN_DIGITS; k++)
            hex[k] = digits[digest[k / 2] >> (k % 2 ? 0 : 4) & 15];
        INVAR_TRY(invar_golden_put(&r->text, hex, sizeof hex));
    }
    return invar_golden_putf(&r->text, "\n");
}

static invar_status record_values(recording *r, invar_sql_stmt *row)
{
    int64_t step = invar_sql_int(row, 0);
    size_t bytes = INVAR_GOLDEN_DIGITS * (size_t)r->n, stored;
    const uint8_t *data;

    if (step >= ALL_BELOW && step % THEN_EVERY != 0)
        return INVAR_OK;
    if (r->step_bytes && r->step_bytes + bytes > STEPS_BYTES)
        return INVAR_OK;
    r->step_bytes += bytes;
    data = invar_sql_blob(row, 1, &stored);
    INVAR_TRY(invar_sql_row(row));
    if (stored < r->digests * sizeof(invar_digest))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "golden: the digests of step %" PRId64 " are damaged",
                          step);
    return put_values(r, step, data);
}

static invar_status record_rows(recording *r, invar_ledger *ledger, const char *text, int64_t run,
                                int64_t manifest,
                                invar_status (*record)(recording *, invar_sql_stmt *))
{
    invar_sql_stmt *row;
    invar_status status = INVAR_SQL_QUERY(&row, ledger->sql, text, run, manifest);

    while (invar_sql_next(&status, row))
        status = record(r, row);
    return invar_sql_end(row, status);
}

static invar_status record_run(recording *r, invar_ledger *ledger, const invar_ledger_summary *run)
{
    // only inputs that are listed here are written
    static const char points[] =
        "SELECT p.ord, p.name, p.phase, p.layer, p.op, p.kind, p.dtype, p.shape, "
        "(SELECT group_concat(value) FROM (SELECT DISTINCT j.value FROM json_each(p.inputs) j "
        "JOIN point q ON q.manifest = p.manifest AND q.ord = j.value AND q.level = 0 "
        "ORDER BY j.value)) FROM point p WHERE p.manifest = ?2 AND p.level = 0 ORDER BY p.ord";
    static const char values[] =
        "SELECT s.step, d.data FROM step s JOIN digest d USING(run, step, seg) WHERE "
        "s.run = ?1 AND d.rank = 0 AND d.manifest = ?2 AND s.seg = "
        "(SELECT max(t.seg) FROM step t WHERE t.run = s.run AND t.step = s.step) ORDER BY s.step";
    invar_golden_points head = {.name = run->name,
                                .identity = run->identity,
                                .last_step = run->last_step,
                                .chain = run->chain};
    int64_t manifest;

    INVAR_TRY(invar_golden_manifest(&manifest, &head.manifest, ledger, run->run));
    INVAR_TRY(put_head(&r->text, &head));
    if (!manifest)
        return INVAR_OK;
    INVAR_TRY(record_rows(r, ledger, points, run->run, manifest, record_point));
    return record_rows(r, ledger, values, run->run, manifest, record_values);
}

invar_status invar_golden_points_of_run(invar_golden_points **out, invar_ledger *ledger,
                                        int64_t run)
{
    invar_ledger_summary summary;
    recording r = {0};
    invar_status status;

    INVAR_TRY(invar_ledger_find_number(&summary, ledger, run));
    status = record_run(&r, ledger, &summary);
    if (status == INVAR_OK)
        status = invar_golden_points_parse(out, summary.name, r.text.data, (size_t)r.text.used);
    invar_free(r.text.data);
    invar_free(r.ords);
    return status;
}
