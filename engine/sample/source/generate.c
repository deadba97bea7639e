/*
 * generate.c - generates samples on all ranks and exchanges them.
 *
 * Sampling changes only some members of a sample. They are sent as a header of fixed size and the
 * arrays of the sample; tokens include the prompt, because plug-ins and agents may use prompts of
 * their own. All ranks have everything else from the same data. Received bytes are validated before
 * use: sizes must not overflow, and the data must end exactly where the last sample ends.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/source/generate.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/ranks/layout/rank_collectives.h"

#include "base/invar_banned.h"

#define PHASE "rollout"

/* ---- packing of samples ---------------------------------------------------------------------- */

/*
 * Header of a packed sample. Ranks run the same executable, so the bytes of a struct are portable.
 */
typedef struct sample_header {
    int64_t prompt;   /* prompt tokens */
    int64_t response; /* response tokens, each with log-prob and mask */
    int64_t cuts;     /* number of branch starts */
    int64_t route_size;
    int64_t text_bytes; /* bytes of the response text; -1 without text */
    int64_t finish;
    int64_t turns;
    int64_t arrival;
    invar_spec_decode_stats speculated;
} sample_header;

/* One array of a packed sample. */
typedef struct sample_array {
    void **data;
    size_t bytes;
} sample_array;

enum { N_ARRAYS = 6 };

static size_t routing_bytes(const invar_rl_sample *s, const sample_header *h)
{
    return (size_t)((h->prompt + h->response - 1) * h->route_size) * sizeof *s->routing;
}

/* Lists the arrays of a sample with the sizes that its header implies. */
static void list_arrays(sample_array out[N_ARRAYS], invar_rl_sample *s, const sample_header *h)
{
    size_t n = (size_t)h->response;

    out[0] = (sample_array){(void **)&s->tokens, ((size_t)h->prompt + n) * sizeof *s->tokens};
    out[1] = (sample_array){(void **)&s->logp, n * sizeof *s->logp};
    out[2] = (sample_array){(void **)&s->mask, n * sizeof *s->mask};
    out[3] = (sample_array){(void **)&s->branch_starts, (size_t)h->cuts * sizeof *s->branch_starts};
    out[4] = (sample_array){(void **)&s->routing, routing_bytes(s, h)};
    out[5] =
        (sample_array){(void **)&s->response, h->text_bytes < 0 ? 0 : (size_t)h->text_bytes + 1};
}

static sample_header make_header(const invar_rl_sample *s)
{
    return (sample_header){.prompt = s->prompt_tokens,
                           .response = invar_rl_sample_response(s),
                           .cuts = s->n_branch_starts,
                           .route_size = s->routing ? s->route_size : 0,
                           .text_bytes = s->response ? (int64_t)s->response_bytes : -1,
                           .finish = s->finish,
                           .turns = s->turns,
                           .arrival = s->stats.arrival,
                           .speculated = s->stats.speculated};
}

static size_t packed_bytes(invar_rl_sample *s, const sample_header *h)
{
    size_t bytes = sizeof *h;
    sample_array parts[N_ARRAYS];

    list_arrays(parts, s, h);
    for (int i = 0; i < N_ARRAYS; i++)
        bytes += parts[i].bytes;
    return bytes;
}

static char *append_bytes(char *at, const void *data, size_t bytes)
{
    if (bytes)
        memcpy(at, data, bytes);
    return at + bytes;
}

static char *pack_sample(char *at, invar_rl_sample *s)
{
    const sample_header h = make_header(s);
    sample_array parts[N_ARRAYS];

    list_arrays(parts, s, &h);
    at = append_bytes(at, &h, sizeof h);
    for (int i = 0; i < N_ARRAYS; i++)
        at = append_bytes(at, *parts[i].data, parts[i].bytes);
    return at;
}

static invar_status pack_all(char **out, int64_t *bytes_out, invar_rl_sample *samples,
                             int64_t count)
{
    size_t bytes = 0;
    char *at;

    for (int64_t i = 0; i < count; i++) {
        const sample_header h = make_header(&samples[i]);
        bytes += packed_bytes(&samples[i], &h);
    }
    INVAR_TRY(INVAR_ALLOC(*out, bytes + 1, "samples for other ranks"));
    at = *out;
    for (int64_t i = 0; i < count; i++)
        at = pack_sample(at, &samples[i]);
    *bytes_out = (int64_t)bytes;
    return INVAR_OK;
}

static invar_status fail_corrupt(void)
{
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "samples of another rank are damaged: check its host and the network");
}

/* Returns true if the numbers of a header are in range, so that no sum of sizes overflows. */
static bool is_plausible_header(const invar_rl_sample *s, const sample_header *h, size_t left)
{
    uint64_t most = left / sizeof *s->routing;

    return h->prompt >= 1 && (uint64_t)h->prompt <= most && h->response >= 0 &&
           (uint64_t)h->response <= most && h->cuts >= 0 && (uint64_t)h->cuts <= most &&
           h->route_size >= 0 &&
           (uint64_t)h->route_size <= most / (uint64_t)(h->prompt + h->response) &&
           h->text_bytes >= -1 && (h->text_bytes < 0 || (uint64_t)h->text_bytes < left) &&
           h->finish >= INVAR_FINISH_NONE && h->finish <= INVAR_FINISH_ABORT;
}

static invar_status unpack_arrays(const char *at, invar_rl_sample *s, const sample_header *h)
{
    sample_array parts[N_ARRAYS];

    list_arrays(parts, s, h);
    for (int i = 0; i < N_ARRAYS; at += parts[i++].bytes) {
        invar_free(*parts[i].data); // the local prompt, or arrays from an earlier tick
        *parts[i].data = NULL;
        if (parts[i].bytes) {
            INVAR_TRY(invar_alloc(parts[i].data, parts[i].bytes, 1, "a sample of another rank"));
            memcpy(*parts[i].data, at, parts[i].bytes);
        }
    }
    return INVAR_OK;
}

/* Returns true if branch starts lie after the prompt and ascend. */
static bool are_branch_starts_valid(const int64_t *cuts, const sample_header *h)
{
    int64_t before = h->prompt;

    for (int64_t i = 0; i < h->cuts; before = cuts[i++])
        if (cuts[i] <= before || cuts[i] >= h->prompt + h->response)
            return false;
    return true;
}

/*
 * Unpacks a sample and moves *at after it. With `multi_turn`, a plug-in or agent drove the sample
 * and may have replaced its prompt; otherwise the prompt must have the local length.
 */
static invar_status unpack_sample(const char **at, const char *end, invar_rl_sample *s,
                                  bool multi_turn)
{
    size_t left = (size_t)(end - *at);
    sample_header h;

    if (left < sizeof h)
        return fail_corrupt();
    memcpy(&h, *at, sizeof h);
    if (!is_plausible_header(s, &h, left) || packed_bytes(s, &h) > left)
        return fail_corrupt();
    if (!multi_turn && (h.prompt != s->prompt_tokens || h.cuts != 0))
        return fail_corrupt();
    INVAR_TRY(unpack_arrays(*at + sizeof h, s, &h));
    *at += packed_bytes(s, &h);
    if (!are_branch_starts_valid(s->branch_starts, &h))
        return fail_corrupt();
    if (multi_turn)
        s->weights.last_from = h.prompt;
    s->prompt_tokens = h.prompt;
    s->n_tokens = h.prompt + h.response;
    s->n_branch_starts = h.cuts;
    s->turns = h.turns;
    if (s->response && s->response[h.text_bytes] != '\0')
        return fail_corrupt();
    s->route_size = h.route_size;
    s->response_bytes = h.text_bytes < 0 ? 0 : (size_t)h.text_bytes;
    s->finish = (invar_finish)h.finish;
    s->stats.arrival = h.arrival;
    s->stats.speculated = h.speculated;
    return INVAR_OK;
}

/* ---- exchange between ranks ------------------------------------------------------------------ */

/*
 * Returns the axis of ranks that exchange samples, which includes ranks that do not sample.
 */
static const invar_layout_axis *exchange_axis(const invar_generate_args *how)
{
    static const invar_layout_axis alone = {.size = 1};

    return how->layout ? &how->layout->rollout_group : &alone;
}

static int engine_of(const invar_generate_args *how, int rank)
{
    return how->layout ? invar_layout_engine_of(how->layout, rank) : rank;
}

/*
 * Returns the range of samples of an engine: whole groups, unless an engine would have none or
 * groups are incomplete.
 */
static invar_index_range engine_share(const invar_generate_args *how, int64_t count, int engine)
{
    int size = how->layout ? invar_layout_engine_count(how->layout) : 1;
    bool whole = count / how->per_prompt >= size && count % how->per_prompt == 0;
    int64_t each = whole ? how->per_prompt : 1;
    invar_index_range share = invar_layout_range_of(count / each, size, engine);

    return (invar_index_range){share.first * each, share.count * each};
}

/*
 * Returns the range that this rank samples together with its engine; empty if it does not sample.
 */
static invar_index_range own_share(const invar_generate_args *how, int64_t count)
{
    int engine = engine_of(how, exchange_axis(how)->rank);

    return engine < 0 ? (invar_index_range){0, 0} : engine_share(how, count, engine);
}

/* Packed samples received from all ranks. */
typedef struct received_samples {
    int64_t *sizes; /* (ranks) bytes from each rank, as received */
    size_t *bytes;  /* (ranks) validated sizes */
    char *data;     /* bytes of all ranks, in rank order */
} received_samples;

static void received_samples_release(received_samples *a)
{
    invar_free(a->data);
    invar_free(a->bytes);
    invar_free(a->sizes);
}

static invar_status exchange_bytes(received_samples *out, const invar_generate_args *how,
                                   const char *own, int64_t bytes)
{
    const invar_layout *layout = how->layout;
    const invar_layout_axis *axis = exchange_axis(how);
    size_t ranks = (size_t)axis->size, all = 0;

    INVAR_TRY(INVAR_ALLOC(out->sizes, ranks, "sizes of samples"));
    INVAR_TRY(INVAR_ALLOC(out->bytes, ranks, "sizes of samples"));
    for (size_t r = 0; r < ranks; r++)
        out->bytes[r] = sizeof bytes;
    out->sizes[axis->rank] = bytes;
    INVAR_TRY(invar_layout_gather(layout, axis, PHASE, out->sizes, out->bytes));
    for (size_t r = 0; r < ranks; r++) {
        if (out->sizes[r] < 0 || (size_t)out->sizes[r] > SIZE_MAX / 2 - all)
            return fail_corrupt();
        out->bytes[r] = (size_t)out->sizes[r];
        all += out->bytes[r];
    }
    INVAR_TRY(INVAR_ALLOC(out->data, all + 1, "samples of all ranks"));
    return invar_comm_run(axis->comm, &(invar_comm_transfer){.op = INVAR_COMM_ALLGATHERV,
                                                             .phase = PHASE,
                                                             .timeout_s = layout->timeout_s,
                                                             .in = own,
                                                             .out = out->data,
                                                             .out_bytes = out->bytes});
}

static invar_status unpack_received(const received_samples *a, const invar_generate_args *how,
                                    invar_rl_sample *samples, int64_t count)
{
    const char *at = a->data;
    int own = engine_of(how, exchange_axis(how)->rank);

    for (int r = 0; r < exchange_axis(how)->size; r++) {
        const char *end = at + a->bytes[r];
        invar_index_range share;

        if (!invar_layout_engine_sends(how->layout, r) || engine_of(how, r) == own) {
            at = end;
            continue;
        }
        share = engine_share(how, count, engine_of(how, r));
        for (int64_t i = 0; i < share.count; i++)
            INVAR_TRY(unpack_sample(&at, end, &samples[share.first + i], false));
        if (at != end)
            return fail_corrupt();
    }
    return INVAR_OK;
}

static invar_status exchange_samples(const invar_generate_args *how, invar_rl_sample *samples,
                                     int64_t count)
{
    invar_index_range own = own_share(how, count);
    received_samples all = {NULL, NULL, NULL};
    char *packed = NULL;
    int64_t bytes;
    invar_status status;

    if (!invar_layout_engine_sends(how->layout, exchange_axis(how)->rank))
        own.count = 0;
    INVAR_TRY(pack_all(&packed, &bytes, samples + own.first, own.count));
    status = exchange_bytes(&all, how, packed, bytes);
    if (status == INVAR_OK)
        status = unpack_received(&all, how, samples, count);
    received_samples_release(&all);
    invar_free(packed);
    return status;
}

/* ---- rewards --------------------------------------------------------------------------------- */

/* Reward of one sample, as broadcast by rank 0. */
typedef struct sent_reward {
    double reward;
    int64_t parts;    /* number of reward parts, which follow separately */
    int64_t rewarded; /* has_plugin_reward */
} sent_reward;

/* Broadcasts the parts of all rewards, concatenated, from rank 0. */
static invar_status broadcast_parts(const invar_generate_args *how, invar_rl_sample *samples,
                                    const sent_reward *verdicts, int64_t count)
{
    invar_reward_part *all = NULL, *at;
    invar_status status = INVAR_OK;
    bool gives = invar_ranks_is_leader(how->layout);
    size_t total = 0;

    for (int64_t i = 0; i < count; i++)
        total += (size_t)verdicts[i].parts;
    if (total == 0)
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC(all, total, "parts of rewards"));
    at = all;
    for (int64_t i = 0; gives && i < count; at += verdicts[i++].parts)
        append_bytes((char *)at, samples[i].parts.items, (size_t)verdicts[i].parts * sizeof *at);
    status = invar_ranks_broadcast(how->layout, "parts of rewards", 0, all, total * sizeof *all);
    at = all;
    for (int64_t i = 0; !gives && i < count && status == INVAR_OK; i++) {
        invar_reward_parts_release(
            &samples[i].parts); // a plug-in may have set them here; rank 0 sends equal ones
        for (int64_t k = 0; k < verdicts[i].parts && status == INVAR_OK; k++, at++)
            status = invar_reward_parts_add(&samples[i].parts, at->name,
                                            strnlen(at->name, sizeof at->name), at->value,
                                            "parts of rewards from rank 0");
    }
    invar_free(all);
    return status;
}

/* Broadcasts the rewards and their parts from rank 0. */
static invar_status broadcast_rewards(const invar_generate_args *how, invar_rl_sample *samples,
                                      int64_t count)
{
    sent_reward *verdicts = NULL;
    invar_status status = INVAR_OK;

    if (!how->layout)
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC(verdicts, (size_t)count, "rewards"));
    for (int64_t i = 0; i < count; i++)
        verdicts[i] =
            (sent_reward){samples[i].reward, samples[i].parts.count, samples[i].has_plugin_reward};
    status = invar_ranks_broadcast(how->layout, "rewards", 0, verdicts,
                                   (size_t)count * sizeof *verdicts);
    for (int64_t i = 0; i < count && status == INVAR_OK; i++) {
        samples[i].reward = verdicts[i].reward;
        samples[i].has_plugin_reward = verdicts[i].rewarded != 0;
    }
    if (status == INVAR_OK)
        status = broadcast_parts(how, samples, verdicts, count);
    invar_free(verdicts);
    return status;
}

static invar_status query_reward_plugin(const invar_generate_args *how, invar_rl_sample *samples,
                                        int64_t count)
{
    if (invar_ranks_is_leader(how->layout))
        INVAR_TRY(invar_reward_source_run(&how->reward_source, samples, count));
    return broadcast_rewards(how, samples, count);
}

static invar_status on_pass_done(void *payload, int64_t samples_done, int64_t tokens_done)
{
    const invar_generate_args *how = payload;

    if (!how->no_collectives)
        invar_layout_heartbeat(how->layout);
    if (how->should_suspend && how->should_suspend(how->suspend_payload, samples_done))
        invar_rollout_suspend(how->rollout);
    return how->tick ? how->tick(how->payload, samples_done, tokens_done) : INVAR_OK;
}

/* Samples the share of this rank. */
static invar_status sample_own_share(const invar_generate_args *how, invar_rl_sample *samples,
                                     int64_t count)
{
    invar_index_range own = own_share(how, count);

    if (own.count)
        return invar_rollout_run(how->rollout, samples + own.first, own.count, &how->sampling,
                                 on_pass_done, (void *)(uintptr_t)how);
    return how->tick ? how->tick(how->payload, 0, 0) : INVAR_OK; // reports progress while waiting
}

static invar_status gather_all(const invar_generate_args *how, invar_rl_sample *samples,
                               int64_t count)
{
    return exchange_axis(how)->size > 1 ? exchange_samples(how, samples, count) : INVAR_OK;
}

invar_status invar_generate_turn(const invar_generate_args *how, invar_rl_sample *samples,
                                 int64_t count)
{
    INVAR_TRY(sample_own_share(how, samples, count));
    return gather_all(how, samples, count);
}

bool invar_generate_needs_reward(const invar_generate_args *how, const invar_rl_sample *samples,
                                 int64_t count, int64_t i)
{
    int64_t first = i;

    if (!how->reward_source.groups)
        return !samples[i].has_plugin_reward;
    while (first > 0 && samples[first - 1].group == samples[i].group)
        first--;
    for (; first < count && samples[first].group == samples[i].group; first++)
        if (!samples[first].has_plugin_reward)
            return true;
    return false;
}

invar_status invar_generate_check_has_reward(const invar_generate_args *how,
                                             const invar_rl_sample *s, const char *leader)
{
    bool reached;

    INVAR_TRY(invar_reward_source_has_reward(&reached, &how->reward_source, s));
    if (reached)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "plug-in %s: sample %" PRId64 " ends without a \"reward\", and nothing else "
                      "gives one (rm-type = none)",
                      leader, s->index);
}

invar_status invar_generate_all_rewards(const invar_generate_args *how, invar_rl_sample *samples,
                                        int64_t count)
{
    return how->reward_source.is_plugin
               ? query_reward_plugin(how, samples, count)
               : invar_reward_source_run(&how->reward_source, samples, count);
}

/* ---- agents ---------------------------------------------------------------------------------- */

/* Rewards the samples that need it, packed side by side; all return to their indexes afterwards. */
static invar_status reward_undecided(const invar_generate_args *how, invar_rl_sample *samples,
                                     int64_t count)
{
    invar_rl_sample *moved = NULL;
    int64_t *places = NULL, n = 0;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(moved, (size_t)count, "samples of agents"));
    status = INVAR_ALLOC(places, (size_t)count, "samples of agents");
    for (int64_t i = 0; i < count && status == INVAR_OK; i++)
        if (invar_generate_needs_reward(how, samples, count, i))
            places[n++] = i;
    for (int64_t k = 0; k < n; k++)
        moved[k] = samples[places[k]];
    if (n > 0)
        status = invar_generate_all_rewards(how, moved, n);
    for (int64_t k = 0; k < n; k++)
        samples[places[k]] = moved[k];
    invar_free(places);
    invar_free(moved);
    return status;
}

static invar_status check_judge(const void *payload, const invar_rl_sample *s)
{
    return invar_generate_check_has_reward(payload, s, INVAR_AGENT_NAME);
}

static invar_status drive_by_agents(const invar_generate_args *how, invar_rl_sample *samples,
                                    int64_t count)
{
    const invar_agent_batch_options order = {.sampling = &how->sampling,
                                             .evaluation = how->evaluation,
                                             .reward_part = how->reward_source.key,
                                             .on_unrewarded =
                                                 how->needs_reward ? check_judge : NULL,
                                             .on_progress = on_pass_done,
                                             .payload = (void *)(uintptr_t)how};

    INVAR_TRY(invar_agents_run(how->agents, samples, count, &order));
    for (int64_t i = 0; i < count && how->needs_reward; i++) // a replayed record may lack rewards
        if (!samples[i].has_plugin_reward)
            INVAR_TRY(check_judge(how, &samples[i]));
    return INVAR_OK;
}

static invar_status unpack_led(const char *packed, int64_t bytes, invar_rl_sample *samples,
                               int64_t count)
{
    const char *at = packed;

    for (int64_t i = 0; i < count; i++)
        INVAR_TRY(unpack_sample(&at, packed + bytes, &samples[i], true));
    return at == packed + bytes ? INVAR_OK : fail_corrupt();
}

/* Broadcasts the samples of rank 0 to all ranks. */
static invar_status broadcast_led(const invar_generate_args *how, invar_rl_sample *samples,
                                  int64_t count)
{
    bool gives = invar_ranks_is_leader(how->layout);
    char *packed = NULL;
    int64_t bytes = 0;
    invar_status status;

    if (gives)
        INVAR_TRY(pack_all(&packed, &bytes, samples, count));
    status = invar_ranks_broadcast(how->layout, PHASE, 0, &bytes, sizeof bytes);
    if (status == INVAR_OK && !gives)
        status =
            bytes > 0 ? INVAR_ALLOC(packed, (size_t)bytes, "samples of rank 0") : fail_corrupt();
    if (status == INVAR_OK)
        status = invar_ranks_broadcast(how->layout, PHASE, 0, packed, (size_t)bytes);
    if (status == INVAR_OK && !gives)
        status = unpack_led(packed, bytes, samples, count);
    invar_free(packed);
    return status;
}

/*
 * Runs the agents on rank 0, whose model samples all their calls; other ranks wait for the samples.
 */
static invar_status run_agents(const invar_generate_args *how, invar_rl_sample *samples,
                               int64_t count)
{
    if (invar_ranks_is_leader(how->layout))
        INVAR_TRY(drive_by_agents(how, samples, count));
    else if (how->tick)
        INVAR_TRY(how->tick(how->payload, 0, 0));
    if (how->layout) {
        INVAR_TRY(broadcast_led(how, samples, count));
        INVAR_TRY(broadcast_rewards(how, samples, count));
    }
    return reward_undecided(how, samples, count);
}

/* ---- interface ------------------------------------------------------------------------------- */

/* Returns true if a plug-in or agents drive the samples, and finish and reward them. */
static bool is_led(const invar_generate_args *how)
{
    return how->turns.enabled || how->agents_lead;
}

invar_status invar_generate_share(const invar_generate_args *how, invar_rl_sample *samples,
                                  int64_t count)
{
    if (how->agents_lead)
        return run_agents(how, samples, count);
    return how->turns.enabled ? invar_multi_turn_run(how, samples, count)
                              : sample_own_share(how, samples, count);
}

invar_status invar_generate_gather(const invar_generate_args *how, invar_rl_sample *samples,
                                   int64_t count)
{
    return is_led(how) ? INVAR_OK : gather_all(how, samples, count);
}

invar_status invar_generate_rewards(const invar_generate_args *how, invar_rl_sample *samples,
                                    int64_t count)
{
    return is_led(how) ? INVAR_OK : invar_generate_all_rewards(how, samples, count);
}

invar_status invar_generate(const invar_generate_args *how, invar_rl_sample *samples, int64_t count)
{
    INVAR_TRY(invar_generate_share(how, samples, count));
    INVAR_TRY(invar_generate_gather(how, samples, count));
    return invar_generate_rewards(how, samples, count);
}
