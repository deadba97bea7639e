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
 * Changes the workload so that the run needs less memory, and writes the key to set. Returns false
 * if that is impossible or was done already.
 */
typedef bool (*change_fn)(invar_memory_workload *ask, char *out, size_t size);

static bool open_rows(invar_memory_workload *workload, char *out, size_t size)
{
    bool set = workload->head_rows > 0;

    workload->head_rows = 0;
    (void)snprintf(out, size, "log-probs-chunk-size = 0");
    return set;
}

static bool open_pages(invar_memory_workload *workload, char *out, size_t size)
{
    bool set = workload->limits.pages > 0;

    workload->limits.pages = 0;
    (void)snprintf(out, size, "kv-pages = 0");
    return set;
}

static bool open_concurrency(invar_memory_workload *workload, char *out, size_t size)
{
    bool set = workload->limits.concurrency > 0;

    workload->limits.concurrency = 0;
    (void)snprintf(out, size, "rollout-concurrency = 0");
    return set;
}

static bool shorten_prefill(invar_memory_workload *workload, char *out, size_t size)
{
    bool long_one =
        workload->limits.prefill_chunk == 0 || workload->limits.prefill_chunk > FEW_ROWS;

    workload->limits.prefill_chunk = FEW_ROWS;
    (void)snprintf(out, size, "chunked-prefill-size = %d", FEW_ROWS);
    return long_one;
}

static bool disable_overlap(invar_memory_workload *workload, char *out, size_t size)
{
    bool beside = workload->models.overlap;

    workload->models.overlap = workload->verify_inflight = false;
    (void)snprintf(out, size, "rollout-overlap = false");
    return beside;
}

static bool shrink_batch(invar_memory_workload *workload, char *out, size_t size)
{
    bool many = workload->plan.micro_batch > 1;

    workload->plan.micro_batch = many ? workload->plan.micro_batch / 2 : workload->plan.micro_batch;
    (void)snprintf(out, size, "micro-batch-size = %" PRId64, workload->plan.micro_batch);
    return many;
}

static bool recompute_activations(invar_memory_workload *workload, char *out, size_t size)
{
    bool keeps = workload->learns && !workload->recompute;

    workload->recompute = true;
    (void)snprintf(out, size, "recompute-granularity = full");
    return keeps;
}

static bool offload_optimizer(invar_memory_workload *workload, char *out, size_t size)
{
    bool there = workload->learns && workload->offload_chunk_bytes == 0 &&
                 invar_device_is_local(workload->dev);

    workload->offload_chunk_bytes = INVAR_OPTIMIZER_CHUNK_BYTES;
    (void)snprintf(out, size, "optimizer-cpu-offload = true");
    return there;
}

static bool shrink_unit(invar_memory_workload *workload, char *out, size_t size)
{
    int64_t rows = invar_memory_plan_batch_of(workload, true).unit_rows;
    // a unit of one sample cannot shrink
    bool many = workload->learns && rows > invar_memory_plan_longest_sample(workload) - 1;

    workload->plan.unit_rows = many ? rows / 2 : workload->plan.unit_rows;
    (void)snprintf(out, size, "unit-rows = %" PRId64, workload->plan.unit_rows);
    return many;
}

static bool halve_response(invar_rollout_shape *r)
{
    bool has = r->prompts > 0 && r->response > 1;

    r->response = has ? r->response / 2 : r->response;
    return has;
}

static bool shorten_responses(invar_memory_workload *workload, char *out, size_t size)
{
    invar_rollout_shape *r = &workload->rollouts[INVAR_MEMORY_PLAN_TRAINING];
    bool has = halve_response(r);

    workload->response = has ? r->response : workload->response;
    (void)snprintf(out, size, "rollout-max-response-len = %" PRId64, workload->response);
    return has;
}

static bool shorten_evaluations(invar_memory_workload *workload, char *out, size_t size)
{
    invar_rollout_shape *r = &workload->rollouts[INVAR_MEMORY_PLAN_EVALUATION];
    bool has = halve_response(r);

    (void)snprintf(out, size, "eval-max-response-len = %" PRId64, r->response);
    return has;
}

static const struct {
    change_fn change_fn;
    bool again;    /* may be applied repeatedly, until the run fits */
    bool semantic; /* the key may change bits: used only if free keys are not enough */
} changes[] = {{open_rows, false, false},
               {open_pages, false, false},
               {open_concurrency, false, false},
               {shorten_prefill, false, false},
               {disable_overlap, false, false},
               {shrink_batch, true, false},
               {recompute_activations, false, false},
               {offload_optimizer, false, false},
               {shrink_unit, true, true},
               {shorten_responses, true, true},
               {shorten_evaluations, true, true}};

#define SEMANTIC " (semantic)"
#define CHANGES (int)(sizeof changes / sizeof *changes)

typedef struct named_change {
    char text[64];
    bool taken;
} named_change;

/* Applies a change to `workload`; *fits_out is true if the run fits then. */
static invar_status apply_change(named_change *out, bool *fits_out, invar_memory_workload *workload,
                                 int which, size_t available)
{
    invar_memory_plan found;

    *fits_out = out->taken = false;
    while (!*fits_out && changes[which].change_fn(workload, out->text, sizeof out->text)) {
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
            if (!changes[i].change_fn(&workload, a.text, sizeof a.text))
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
