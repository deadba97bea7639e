/*
 * ci.c - prints CI results as text and converts them to JSON.
 *
 * The headline is one line per case; details follow on lines of their own. All texts from recipes,
 * goldens and ledgers are escaped. Names of JSON members are a documented format.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bisect/view/ci.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/json/result.h"
#include "base/number.h"
#include "base/process/argv0.h"
#include "base/text.h"

#include "base/invar_banned.h"

static const char *quote_text(char out[INVAR_CI_LINE], const char *text)
{
    invar_text_quote(out, INVAR_CI_LINE, text, strlen(text));
    return out;
}

/* ---- text ------------------------------------------------------------------------------------ */

void invar_ci_headline(char out[INVAR_CI_LINE], const invar_ci_result *result)
{
    char text[INVAR_CI_LINE];

    switch (result->verdict) {
    case INVAR_CI_SAME:
        (void)snprintf(out, INVAR_CI_LINE, "%" PRId64 " of %" PRId64 " steps%s", result->compared,
                       result->steps, result->chaos ? ", however it is run" : "");
        return;
    case INVAR_CI_CHANGED:
    case INVAR_CI_NONDETERMINISTIC:
        (void)snprintf(out, INVAR_CI_LINE, "%s%.1000s", result->first >= 0 ? "from " : "",
                       quote_text(text, result->headline));
        return;
    case INVAR_CI_NOTHING: (void)snprintf(out, INVAR_CI_LINE, "not one step was compared"); return;
    default: (void)snprintf(out, INVAR_CI_LINE, "%s", quote_text(text, result->reason));
    }
}

static void print_loss(FILE *out, const invar_ci_result *r, const char *before)
{
    char was[INVAR_NUMBER_SIZE], is[INVAR_NUMBER_SIZE], difference[INVAR_NUMBER_SIZE];

    if (!r->has_loss || memcmp(&r->loss_was, &r->loss_is, sizeof r->loss_is) == 0 ||
        invar_number_format_plain(was, r->loss_was) != INVAR_OK ||
        invar_number_format_plain(is, r->loss_is) != INVAR_OK ||
        invar_number_format_plain(difference, r->loss_is - r->loss_was) != INVAR_OK) {
        invar_error_clear();
        return;
    }
    fprintf(out, "%sloss    %s, was %s: %s\n", before, is, was, difference);
}

static void print_text(FILE *out, const char *before, const char *label, const char *text)
{
    char quoted[INVAR_CI_LINE];

    fprintf(out, "%s%-7s %s\n", before, label, quote_text(quoted, text));
}

static void print_place(FILE *out, const invar_golden_divergence *p, const char *before)
{
    size_t shown = p->n_changes < INVAR_GOLDEN_SHOWN ? p->n_changes : INVAR_GOLDEN_SHOWN;

    if (p->known)
        fprintf(out,
                "%spoint   %s, was %s; %" PRId64 " points differ there, %" PRId64 " are equal\n",
                before, p->is, p->was, p->different, p->equal);
    for (size_t i = 0; i < shown; i++)
        print_text(out, before, "points", p->changes[i]);
    if (p->n_changes > shown)
        fprintf(out, "%spoints  and %zu more changes\n", before, p->n_changes - shown);
}

/*
 * Returns the word that names the case in a command: NAME for recipes/NAME.ini, otherwise the path.
 */
static const char *command_word(const invar_ci_case *item)
{
    char usual[INVAR_GOLDEN_NAME + sizeof "recipes/.ini"];

    (void)snprintf(usual, sizeof usual, "recipes/%s.ini", item->name);
    return strcmp(item->recipe, usual) == 0 ? item->name : item->recipe;
}

void invar_ci_details(FILE *out, const invar_ci_result *result, const char *before)
{
    char was[INVAR_DIGEST_HEX_SIZE], is[INVAR_DIGEST_HEX_SIZE], text[INVAR_CI_LINE];

    // otherwise it is in the headline
    if (result->verdict == INVAR_CI_OBSOLETE && result->headline[0])
        print_text(out, before, "first", result->headline);
    if (result->first >= 0) {
        invar_digest_format(was, &result->chain_was);
        invar_digest_format(is, &result->chain_is);
        fprintf(out, "%schain   %s at step %" PRId64 ", was %s\n", before, is, result->first, was);
        print_loss(out, result, before);
        print_place(out, &result->divergence, before);
    }
    if (result->ops[0])
        print_text(out, before, "ops", result->ops);
    if (result->reason[0] && result->first >= 0 && result->verdict != INVAR_CI_OBSOLETE)
        print_text(out, before, "why", result->reason);
    if (result->varied[0])
        print_text(out, before, "varied", result->varied);
    for (const char *line = result->varied[0] ? NULL : result->variations; line && *line;) {
        size_t length = strcspn(line, "\n");
        invar_text_quote(text, sizeof text, line, length);
        fprintf(out, "%svaried  %s\n", before, text);
        line += length + 1;
    }
    if (result->pending || result->verdict == INVAR_CI_MISSING) {
        fprintf(out, "%snext    %s ci %s ", before, invar_argv0(),
                result->pending ? "review" : "record");
        invar_text_print_shell_word(out, command_word(result->item));
        fputc('\n', out);
    }
    if (result->verdict == INVAR_CI_CHANGED) {
        fprintf(out, "%sfind    %s bisect --good REV ", before, invar_argv0());
        invar_text_print_shell_word(out, result->item->recipe);
        fputs(", with REV a commit whose bits were these\n", out);
    }
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *place_json(const invar_golden_divergence *p)
{
    json_t *changes = json_array();

    for (size_t i = 0; changes && i < p->n_changes && i < INVAR_GOLDEN_SHOWN; i++)
        (void)json_array_append_new(changes, p->changes[i][0] ? invar_result_line(p->changes[i])
                                                              : json_null());
    return INVAR_RESULT(INVAR_CI_PLACE, p->step, p->point, p->phase, p->layer, p->op, p->kind,
                        p->dtype, p->shape, p->was, p->is, p->exact, p->different, p->equal,
                        changes);
}

static json_t *lines_json(const char *lines)
{
    json_t *out = json_array();
    char text[INVAR_CI_LINE];

    while (out && lines && *lines) {
        size_t length = strcspn(lines, "\n");
        invar_text_quote(text, sizeof text, lines, length);
        (void)json_array_append_new(out, json_string(text));
        lines += length + 1;
    }
    return out;
}

static json_t *result_json(const void *item)
{
    const invar_ci_result *r = item;
    bool some = r->compared > 0;

    return INVAR_RESULT(
        INVAR_CI_RESULT, r->item->name, invar_ci_verdict_name(r->verdict), r->item->golden,
        r->reason, r->varied, r->runs, r->chaos, lines_json(r->variations), r->pending, r->seconds,
        r->commit, r->dirty, r->compared, r->steps, r->first, some ? &r->chain_was : NULL,
        some ? &r->chain_is : NULL, r->has_loss ? r->loss_was : NAN, r->has_loss ? r->loss_is : NAN,
        r->first >= 0 ? place_json(&r->divergence) : json_null(), r->ops, r->same_identity);
}

json_t *invar_ci_json(const invar_ci_result *results, size_t count)
{
    return invar_result_list(results, count, sizeof *results, result_json);
}
