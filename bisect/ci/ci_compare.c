/*
 * ci_compare.c - compares CI runs with goldens; reviews, accepts and rejects pending goldens.
 *
 * A comparison finds the first differing step, op revisions and, from the recorded points, the
 * divergence. Accepting renames the points first: points that do not match their golden are
 * ignored, so a kill between the two steps leaves a consistent golden.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/text.h"
#include "bisect/ci/ci_internal.h"
#include "bisect/git/repo.h"

#include "base/invar_banned.h"

/* ---- sides ----------------------------------------------------------------------------------- */

void invar_ci_side_free(invar_ci_side *side)
{
    invar_golden_free(side->golden);
    invar_golden_points_free(side->points);
    *side = (invar_ci_side){0};
}

invar_status invar_ci_side_read(invar_ci_side *out, const char *path)
{
    invar_status status;

    *out = (invar_ci_side){0};
    INVAR_TRY(invar_golden_read(&out->golden, path));
    status = invar_golden_points_beside(&out->points, out->golden, path);
    if (status != INVAR_OK)
        invar_ci_side_free(out);
    return status;
}

/* ---- comparison ------------------------------------------------------------------------------ */

static double loss_of(uint64_t bits)
{
    double value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static void format_ops(char out[INVAR_CI_OPS], const invar_golden_comparison *c)
{
    size_t shown = c->ops_differ < INVAR_GOLDEN_SHOWN ? c->ops_differ : INVAR_GOLDEN_SHOWN;
    size_t used = 0;

    out[0] = '\0';
    for (size_t i = 0; i < shown && used < INVAR_CI_OPS; i++) {
        const char *was = c->ops[i].old_revision, *is = c->ops[i].new_revision;
        used += (size_t)snprintf(out + used, INVAR_CI_OPS - used, "%s%s %s -> %s", i ? ", " : "",
                                 c->ops[i].name, was ? was : "none", is ? is : "none");
    }
    if (c->ops_differ > shown && used < INVAR_CI_OPS)
        (void)snprintf(out + used, INVAR_CI_OPS - used, ", and %zu more", c->ops_differ - shown);
}

static invar_status set_divergence(invar_ci_result *out, const invar_ci_side *was,
                                   const invar_ci_side *is)
{
    out->divergence = (invar_golden_divergence){.step = -1, .layer = -1};
    if (out->only_loss) {
        (void)snprintf(out->headline, sizeof out->headline,
                       "step %" PRId64 ", only the metric train/loss", out->first);
        return INVAR_OK;
    }
    if (was->points && is->points)
        INVAR_TRY(invar_golden_localize(&out->divergence, was->points, is->points, out->first));
    invar_golden_divergence_describe(out->headline, &out->divergence, out->first);
    return INVAR_OK;
}

invar_status invar_ci_compare(invar_ci_result *out, const invar_ci_side *was,
                              const invar_ci_side *is)
{
    static const invar_ci_verdict verdicts[] = {INVAR_CI_SAME, INVAR_CI_CHANGED, INVAR_CI_NOTHING};
    invar_golden_comparison c;
    int64_t step;

    invar_golden_compare(&c, was->golden, is->golden);
    out->verdict = verdicts[c.verdict];
    out->compared = c.compared;
    out->steps = c.steps;
    out->first = c.first;
    out->same_identity = c.same_identity;
    out->only_loss = c.only_loss;
    out->headline[0] = '\0';
    out->line = c.first >= 0 ? was->golden->first_line + c.first : 1;
    format_ops(out->ops, &c);
    step = c.first >= 0 ? c.first : c.compared - 1;
    if (step >= 0) {
        const invar_golden_step *x = &was->golden->steps[step], *y = &is->golden->steps[step];
        out->chain_was = x->chain;
        out->chain_is = y->chain;
        out->has_loss = x->has_loss && y->has_loss;
        out->loss_was = out->has_loss ? loss_of(x->loss) : 0;
        out->loss_is = out->has_loss ? loss_of(y->loss) : 0;
    }
    return c.first >= 0 ? set_divergence(out, was, is) : INVAR_OK;
}

void invar_ci_check_length(invar_ci_result *out, int64_t made, int64_t asked)
{
    // a run always finishes its rollout, which may have several steps
    int64_t least = asked > 0 && asked < out->steps ? asked : out->steps;

    if (out->verdict != INVAR_CI_SAME || (made >= least && made <= out->steps))
        return;
    out->verdict = INVAR_CI_OBSOLETE;
    (void)snprintf(out->reason, sizeof out->reason,
                   "the golden is of another length: it has %" PRId64 " steps, the run %" PRId64,
                   out->steps, made);
}

void invar_ci_check_identity(invar_ci_result *out)
{
    if (out->same_identity)
        return;
    (void)snprintf(out->reason, sizeof out->reason,
                   "the golden is of another identity: the recipe, its data or the model asks for "
                   "something else now%s",
                   out->verdict == INVAR_CI_SAME ? " (no bit of the compared steps differs)" : "");
    out->verdict = INVAR_CI_OBSOLETE;
}

const char *invar_ci_verdict_name(invar_ci_verdict verdict)
{
    static const char *const names[] = {
        [INVAR_CI_SAME] = "same",
        [INVAR_CI_CHANGED] = "changed",
        [INVAR_CI_NONDETERMINISTIC] = "nondeterministic",
        [INVAR_CI_MISSING] = "missing",
        [INVAR_CI_OBSOLETE] = "obsolete",
        [INVAR_CI_NOTHING] = "nothing",
        [INVAR_CI_TROUBLE] = "trouble",
        [INVAR_CI_STOPPED] = "stopped",
    };

    return names[verdict];
}

/* ---- pending goldens ------------------------------------------------------------------------- */

static invar_status fail_nothing_pending(const invar_ci_case *item)
{
    return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                      "%.1000s: nothing is pending; 'invar ci check %.1000s' writes what differs",
                      item->name, item->recipe);
}

invar_status invar_ci_review(invar_ci_result *out, const invar_ci_case *item)
{
    invar_ci_side was = {0}, is = {0};
    invar_status status;

    *out = (invar_ci_result){.item = item, .first = -1, .line = 1, .pending = true};
    if (!invar_ci_pending(item))
        return fail_nothing_pending(item);
    INVAR_TRY(invar_ci_side_read(&is, item->new_golden));
    status = invar_ci_side_read(&was, item->golden);
    if (status == INVAR_E_NOTFOUND || status == INVAR_E_UNSUPPORTED) {
        out->verdict = status == INVAR_E_NOTFOUND ? INVAR_CI_MISSING : INVAR_CI_OBSOLETE;
        out->steps = is.golden->n_steps;
        (void)snprintf(out->reason, sizeof out->reason, "%s", invar_error_last()->message);
        invar_error_clear();
        status = INVAR_OK;
    } else if (status == INVAR_OK) {
        status = invar_ci_compare(out, &was, &is);
        invar_ci_check_length(out, is.golden->n_steps, 0);
        invar_ci_check_identity(out);
    }
    invar_ci_side_free(&was);
    invar_ci_side_free(&is);
    return status;
}

static invar_status remove_file(const char *path)
{
    if (unlink(path) != 0 && errno != ENOENT)
        return INVAR_FAIL(INVAR_E_IO, errno, "%.1000s cannot be removed: %s", path,
                          strerror(errno));
    return INVAR_OK;
}

invar_status invar_ci_reject(const invar_ci_case *item)
{
    if (!invar_ci_pending(item) && !invar_path_exists(item->new_points))
        return fail_nothing_pending(item);
    INVAR_TRY(remove_file(item->new_points));
    return remove_file(item->new_golden);
}

/*
 * Formats "AUTHOR, COMMIT, REASON", with author and commit from the golden's repository if it has
 * one.
 */
static invar_status format_history_entry(char out[INVAR_GOLDEN_TEXT], const invar_ci_case *item,
                                         const char *reason)
{
    char who[INVAR_REPO_TEXT] = "unknown", commit[INVAR_OID_SIZE] = "no commit";
    char folder[INVAR_PATH_SIZE];
    invar_repo *repo = NULL;

    if (invar_path_folder(folder, item->golden) == INVAR_OK &&
        invar_repo_open(&repo, folder) == INVAR_OK) {
        invar_repo_signature(who, repo);
        if (invar_repo_resolve(commit, repo, "HEAD") == INVAR_OK)
            commit[12] = '\0';
        else
            (void)snprintf(commit, sizeof commit, "no commit");
    }
    invar_repo_close(repo);
    invar_error_clear();
    if (snprintf(out, INVAR_GOLDEN_TEXT, "%s, %s, %s", who, commit, reason) >= INVAR_GOLDEN_TEXT)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "the reason is too long: %zu bytes, at most about 600", strlen(reason));
    return INVAR_OK;
}

static invar_status check_reason(const char *reason)
{
    size_t length = strlen(reason), step;

    if (strspn(reason, " ") == length)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "a reason is needed: --reason \"why the bits change\"");
    for (size_t i = 0; i < length; i += step) {
        step = invar_text_char(reason + i, length - i);
        if (step == 0)
            return INVAR_FAIL(INVAR_E_INVALID, 0, "the reason must be one line of plain text");
    }
    return INVAR_OK;
}

/*
 * Returns true if an earlier call was killed after all steps except the removal of the pending
 * files.
 */
static bool was_accepted(const invar_golden *before, const invar_golden *pending)
{
    invar_golden_comparison c;

    if (!before || before->n_steps != pending->n_steps)
        return false;
    invar_golden_compare(&c, before, pending);
    return c.first < 0 && c.same_identity && c.same_manifest && c.ops_differ == 0;
}

static invar_status replace_golden(const invar_ci_case *item, const invar_golden *pending,
                                   const invar_golden *before, const char *reason)
{
    char entry[INVAR_GOLDEN_TEXT];
    invar_golden *accepted;
    invar_status status;

    // points first: points that do not match their golden are ignored
    if (invar_path_exists(item->new_points) && rename(item->new_points, item->points) != 0)
        return INVAR_FAIL(INVAR_E_IO, errno, "%.1000s cannot be renamed: %s", item->new_points,
                          strerror(errno));
    if (was_accepted(before, pending))
        return INVAR_OK;
    INVAR_TRY(format_history_entry(entry, item, reason));
    INVAR_TRY(invar_golden_accept(&accepted, pending, before, entry));
    status = invar_golden_write(item->golden, accepted);
    invar_golden_free(accepted);
    return status;
}

invar_status invar_ci_accept(const invar_ci_case *item, const char *reason)
{
    invar_golden *pending = NULL, *before = NULL;
    invar_status status;

    if (!invar_ci_pending(item))
        return fail_nothing_pending(item);
    INVAR_TRY(check_reason(reason));
    INVAR_TRY(invar_golden_read(&pending, item->new_golden));
    status = invar_golden_read(&before, item->golden);
    if (status == INVAR_E_NOTFOUND || status == INVAR_E_UNSUPPORTED) {
        invar_error_clear();
        status = INVAR_OK;
    }
    if (status == INVAR_OK)
        status = replace_golden(item, pending, before, reason);
    if (status == INVAR_OK)
        status = remove_file(item->new_golden);
    invar_golden_free(pending);
    invar_golden_free(before);
    return status;
}
