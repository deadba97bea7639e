/*
 * advice.c - the error for a run that does not fit: its numbers, and the keys that would help.
 *
 * Every change is planned before it is named. If no change is enough alone, changes are added up
 * until the run fits, and those that turn out to be unnecessary are left out again. Free keys come
 * first, then what changes the run: fewer rows and tokens, or LoRA instead of training all weights.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/lora/adapters.h"
#include "engine/run/memory_plan/memory_plan.h"

#include "base/invar_banned.h"

#define MOST_NAMED 3 // largest number of changes, and of items, in a message
#define FEW_ROWS 256 // rows of a small prefill chunk
#define LORA_RANK 16 // rank of the suggested adapters

/*
 * Changes the workload so that the run needs less memory. Returns the new value of the key; -1 if
 * that is impossible or was done already.
 */
typedef int64_t (*change_fn)(invar_memory_workload *ask);

/* Leaves a setting open, so that the plan chooses it. */
static int64_t open_setting(int64_t *setting)
{
    bool set = *setting > 0;

    *setting = 0;
    return set ? 0 : -1;
}

static int64_t open_rows(invar_memory_workload *workload)
{
    return open_setting(&workload->head_rows);
}

static int64_t open_pages(invar_memory_workload *workload)
{
    return open_setting(&workload->limits.pages);
}

static int64_t open_concurrency(invar_memory_workload *workload)
{
    return open_setting(&workload->limits.concurrency);
}

static int64_t shorten_prefill(invar_memory_workload *workload)
{
    int64_t rows = workload->limits.prefill_chunk;

    workload->limits.prefill_chunk = FEW_ROWS;
    return rows == 0 || rows > FEW_ROWS ? FEW_ROWS : -1;
}

static int64_t disable_overlap(invar_memory_workload *workload)
{
    bool beside = workload->models.overlap;

    workload->models.overlap = workload->verify_inflight = false;
    return beside ? 0 : -1;
}

static int64_t shrink_batch(invar_memory_workload *workload)
{
    return workload->plan.micro_batch > 1 ? workload->plan.micro_batch /= 2 : -1;
}

static int64_t recompute_activations(invar_memory_workload *workload)
{
    bool keeps = workload->learns && !workload->recompute;

    workload->recompute = true;
    return keeps ? 0 : -1;
}

static int64_t offload_optimizer(invar_memory_workload *workload)
{
    bool there = workload->learns && workload->offload_chunk_bytes == 0 &&
                 invar_device_is_local(workload->dev);

    workload->offload_chunk_bytes = INVAR_OPTIMIZER_CHUNK_BYTES;
    return there ? 0 : -1;
}

static int64_t shrink_unit(invar_memory_workload *workload)
{
    int64_t rows = invar_memory_plan_batch_of(workload, true).unit_rows;

    // a unit of one sample cannot shrink
    return workload->learns && rows > invar_memory_plan_longest_sample(workload) - 1
               ? workload->plan.unit_rows = rows / 2
               : -1;
}

static int64_t halve_response(invar_rollout_shape *r)
{
    return r->prompts > 0 && r->response > 1 ? r->response /= 2 : -1;
}

static int64_t shorten_responses(invar_memory_workload *workload)
{
    int64_t response = halve_response(&workload->rollouts[INVAR_MEMORY_PLAN_TRAINING]);

    return response < 0 ? -1 : (workload->lengths.response = response);
}

static int64_t shorten_evaluations(invar_memory_workload *workload)
{
    return halve_response(&workload->rollouts[INVAR_MEMORY_PLAN_EVALUATION]);
}

static const struct {
    const char *key;
    change_fn change_fn;
    const char *word; /* value of the key if it is a word, or NULL */
    bool again;       /* may be applied repeatedly, until the run fits */
    bool semantic;    /* the key may change bits: used only if free keys are not enough */
} changes[] = {{"log-probs-chunk-size", open_rows, NULL, false, false},
               {"kv-pages", open_pages, NULL, false, false},
               {"rollout-concurrency", open_concurrency, NULL, false, false},
               {"chunked-prefill-size", shorten_prefill, NULL, false, false},
               {"rollout-overlap", disable_overlap, "false", false, false},
               {"micro-batch-size", shrink_batch, NULL, true, false},
               {"recompute-granularity", recompute_activations, "full", false, false},
               {"optimizer-cpu-offload", offload_optimizer, "true", false, false},
               {"unit-rows", shrink_unit, NULL, true, true},
               {"rollout-max-response-len", shorten_responses, NULL, true, true},
               {"eval-max-response-len", shorten_evaluations, NULL, true, true}};

#define SEMANTIC " (semantic)"
#define CHANGES (int)(sizeof changes / sizeof *changes)

typedef struct named_change {
    char text[64];
    bool taken;
} named_change;

/* Applies a change once and writes the key to set. Returns false if it is impossible. */
static bool change_once(named_change *out, invar_memory_workload *workload, int which)
{
    int64_t value = changes[which].change_fn(workload);

    if (value < 0)
        return false;
    if (changes[which].word)
        (void)snprintf(out->text, sizeof out->text, "%s = %s", changes[which].key,
                       changes[which].word);
    else
        (void)snprintf(out->text, sizeof out->text, "%s = %" PRId64, changes[which].key, value);
    return true;
}

/* Applies a change to `workload`; *fits_out is true if the run fits then. */
static invar_status apply_change(named_change *out, bool *fits_out, invar_memory_workload *workload,
                                 int which, size_t available)
{
    invar_memory_plan found;

    *fits_out = out->taken = false;
    while (!*fits_out && change_once(out, workload, which)) {
        out->taken = true;
        INVAR_TRY(invar_memory_plan_make(&found, workload, available));
        *fits_out = found.fits;
        if (!changes[which].again)
            break;
    }
    return INVAR_OK;
}

static void append_text(char *out, size_t size, const char *before, const char *text)
{
    size_t used = strlen(out);

    (void)snprintf(out + used, size - used, "%s%s", before, text);
}

static void append_advice(char *out, size_t size, const char *before, const named_change *a,
                          int which)
{
    append_text(out, size, before, a->text);
    append_text(out, size, "", changes[which].semantic ? SEMANTIC : "");
}

/* Names changes that are enough, each by itself. */
static invar_status find_single(char *out, size_t size, const invar_memory_workload *asked,
                                size_t available)
{
    int count = 0;

    for (int i = 0; i < CHANGES && count < MOST_NAMED; i++) {
        invar_memory_workload workload = *asked;
        named_change a;
        bool fits;

        if (changes[i].semantic && count > 0)
            break;
        INVAR_TRY(apply_change(&a, &fits, &workload, i, available));
        if (fits)
            append_advice(out, size, count++ > 0 ? ", or " : "set ", &a, i);
    }
    return INVAR_OK;
}

/* *out is true if the run fits with all applied changes except `without`. */
static invar_status fits_without(bool *out, const invar_memory_workload *asked,
                                 const named_change *list, int without, size_t available)
{
    invar_memory_workload workload = *asked;
    invar_memory_plan found;

    for (int i = 0; i < CHANGES; i++) {
        named_change a = {.text = ""};
        while (i != without && list[i].taken && strcmp(a.text, list[i].text) != 0)
            if (!change_once(&a, &workload, i))
                break;
    }
    INVAR_TRY(invar_memory_plan_make(&found, &workload, available));
    *out = found.fits;
    return INVAR_OK;
}

/* Names changes that are enough together; `before` is written before the first. */
static invar_status find_several(char *out, size_t size, const char *before,
                                 const invar_memory_workload *asked, size_t available)
{
    named_change list[CHANGES] = {{.taken = false}};
    invar_memory_workload workload = *asked;
    bool fits = false, idle;
    int named = 0;

    for (int i = 0; i < CHANGES && !fits; i++)
        INVAR_TRY(apply_change(&list[i], &fits, &workload, i, available));
    for (int i = 0; i < CHANGES && fits; i++) {
        if (!list[i].taken)
            continue;
        INVAR_TRY(fits_without(&idle, asked, list, i, available));
        list[i].taken = !idle;
    }
    for (int i = 0; i < CHANGES && fits; i++)
        if (list[i].taken)
            append_advice(out, size, named++ > 0 ? " and " : before, &list[i], i);
    return INVAR_OK;
}

/* Names LoRA, alone or with other changes, if it would make the run fit. */
static invar_status find_adapters(char *out, size_t size, const invar_memory_workload *asked,
                                  size_t available)
{
    invar_model_spec spec = *asked->models.actor;
    invar_memory_workload workload = *asked;
    invar_memory_plan found;
    char more[INVAR_MEMORY_PLAN_ADVICE_SIZE] = "", first[64];

    if (!workload.learns || spec.lora.rank > 0)
        return INVAR_OK;
    spec.lora = (invar_lora_spec){.rank = LORA_RANK, .alpha = LORA_RANK};
    INVAR_TRY(invar_lora_targets(&spec.lora.targets, "all-linear"));
    workload.models.actor = &spec;
    INVAR_TRY(invar_memory_plan_make(&found, &workload, available));
    if (!found.fits)
        INVAR_TRY(find_several(more, sizeof more, " and ", &workload, available));
    if (!found.fits && !more[0])
        return INVAR_OK;
    (void)snprintf(first, sizeof first, "%slora-rank = %d" SEMANTIC, out[0] ? ", or " : "set ",
                   LORA_RANK);
    append_text(out, size, first, more);
    return INVAR_OK;
}

/* ---- the error message ----------------------------------------------------------------------- */

/* Formats bytes, such as "12.3 GiB". */
static void format_bytes(char out[24], size_t bytes)
{
    if (bytes >= (size_t)1 << 30)
        (void)snprintf(out, 24, "%.1f GiB", (double)bytes / (double)((size_t)1 << 30));
    else
        (void)snprintf(out, 24, "%.1f MiB", (double)bytes / (double)((size_t)1 << 20));
}

static void name_largest(char *out, size_t size, const invar_memory_plan *b)
{
    invar_memory_plan_item items[INVAR_MEMORY_PLAN_ITEMS + 3];
    size_t rest = b->block - b->sampler_bytes;
    int count = 0;

    if (b->need == b->load_peak_bytes)
        items[count++] = (invar_memory_plan_item){"loading the teacher", b->load_peak_bytes};
    for (int i = 0; i < b->n_items; i++)
        items[count++] = b->items[i];
    if (b->sampler_bytes > 0)
        items[count++] = (invar_memory_plan_item){"sampling ahead", b->sampler_bytes};
    items[count++] =
        b->sampler_bytes == 0 && rest == b->sampling
            ? (invar_memory_plan_item){"sampling", rest}
            : (invar_memory_plan_item){rest == b->learning ? "learning" : "scoring", rest};
    out[0] = '\0';
    for (int n = 0; n < MOST_NAMED && n < count; n++) {
        size_t used = strlen(out);
        char bytes[24];
        int largest = n;
        invar_memory_plan_item item;

        for (int i = n + 1; i < count; i++)
            largest = items[i].bytes > items[largest].bytes ? i : largest;
        item = items[largest];
        items[largest] = items[n];
        items[n] = item;
        format_bytes(bytes, item.bytes);
        (void)snprintf(out + used, size - used, "%s%s %s", n > 0 ? ", " : "", item.name, bytes);
    }
}

/* True if the advice is empty or has keys that change the run. */
static bool changes_run(const char *keys)
{
    return !keys[0] || strstr(keys, SEMANTIC);
}

invar_status invar_memory_plan_advice(char out[INVAR_MEMORY_PLAN_ADVICE_SIZE],
                                      const invar_memory_plan *b,
                                      const invar_memory_workload *workload)
{
    out[0] = '\0';
    if (b->fits)
        return INVAR_OK;
    INVAR_TRY(find_single(out, INVAR_MEMORY_PLAN_ADVICE_SIZE, workload, b->available));
    if (!out[0])
        INVAR_TRY(find_several(out, INVAR_MEMORY_PLAN_ADVICE_SIZE, "set ", workload, b->available));
    return changes_run(out)
               ? find_adapters(out, INVAR_MEMORY_PLAN_ADVICE_SIZE, workload, b->available)
               : INVAR_OK;
}

invar_status invar_memory_plan_check_fits(const invar_memory_plan *b,
                                          const invar_memory_workload *workload)
{
    char need[24], available[24], largest[160], keys[INVAR_MEMORY_PLAN_ADVICE_SIZE];
    bool far = invar_device_is_local(workload->dev);

    if (b->fits)
        return INVAR_OK;
    INVAR_TRY(invar_memory_plan_advice(keys, b, workload));
    format_bytes(need, b->need);
    format_bytes(available, b->usable);
    name_largest(largest, sizeof largest, b);
    return INVAR_FAIL(
        INVAR_E_NOMEM, far ? INVAR_DEVICE_NOMEM : 0,
        "the run does not fit: it needs %s, the %s has %s to use; the largest are %s; %s%s", need,
        far ? "GPU" : "machine", available, largest,
        far && changes_run(keys)
            ? "'invar plan RECIPE --gpus 8 --all' shows whether 8 GPUs can share it; "
            : "",
        keys[0] ? keys
        : far && workload->learns
            ? "no setting of this recipe is enough, not even LoRA (lora-rank) with "
              "optimizer-cpu-offload: take a smaller model"
            : "no setting of this recipe is enough: take a smaller model");
}
