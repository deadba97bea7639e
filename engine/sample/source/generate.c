/*
 * generate.c - samples of all ranks.
 *
 * What generation adds to a sample travels as a head of fixed size and its arrays, of which tokens
 * are whole: those who lead samples may have prompts of their own. Everything else every rank has
 * by itself, from the same data.
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

/* ---- what travels ---------------------------------------------------------------------------- */

/* Ranks run the same program: a struct is the same bytes on all of them. */
typedef struct head {
    int64_t prompt;   /* tokens */
    int64_t response; /* likewise; each with log-probability and mask */
    int64_t cuts;
    int64_t route_size;
    int64_t text_bytes; /* of the response; -1: there is no text */
    int64_t finish;
    int64_t turns;
    int64_t arrival;
    invar_spec_decode_stats speculated;
} head;

/* An array of a sample, once its head is known. */
typedef struct part {
    void **data;
    size_t bytes;
} part;

enum { PARTS = 6 };

static size_t routes_of(const invar_rl_sample *s, const head *h)
{
    return (size_t)((h->prompt + h->response - 1) * h->route_size) * sizeof *s->routing;
}

/* All arrays. */
static void parts_of(part out[PARTS], invar_rl_sample *s, const head *h)
{
    size_t n = (size_t)h->response;

    out[0] = (part){(void **)&s->tokens, ((size_t)h->prompt + n) * sizeof *s->tokens};
    out[1] = (part){(void **)&s->logp, n * sizeof *s->logp};
    out[2] = (part){(void **)&s->mask, n * sizeof *s->mask};
    out[3] = (part){(void **)&s->branch_starts, (size_t)h->cuts * sizeof *s->branch_starts};
    out[4] = (part){(void **)&s->routing, routes_of(s, h)};
    out[5] = (part){(void **)&s->response, h->text_bytes < 0 ? 0 : (size_t)h->text_bytes + 1};
}

static head head_of(const invar_rl_sample *s)
{
    return (head){.prompt = s->prompt_tokens,
                  .response = invar_rl_sample_response(s),
                  .cuts = s->n_cuts,
                  .route_size = s->routing ? s->route_size : 0,
                  .text_bytes = s->response ? (int64_t)s->response_bytes : -1,
                  .finish = s->finish,
                  .turns = s->turns,
                  .arrival = s->arrival,
                  .speculated = s->speculated};
}

static size_t bytes_of(invar_rl_sample *s, const head *h)
{
    size_t bytes = sizeof *h;
    part parts[PARTS];

    parts_of(parts, s, h);
    for (int i = 0; i < PARTS; i++)
        bytes += parts[i].bytes;
    return bytes;
}

static char *put(char *at, const void *data, size_t bytes)
{
    if (bytes)
        memcpy(at, data, bytes);
    return at + bytes;
}

static char *rl_sample_pack(char *at, invar_rl_sample *s)
{
    const head h = head_of(s);
    part parts[PARTS];

    parts_of(parts, s, &h);
    at = put(at, &h, sizeof h);
    for (int i = 0; i < PARTS; i++)
        at = put(at, *parts[i].data, parts[i].bytes);
    return at;
}

static invar_status pack_all(char **out, int64_t *bytes_out, invar_rl_sample *samples,
                             int64_t count)
{
    size_t bytes = 0;
    char *at;

    for (int64_t i = 0; i < count; i++) {
        const head h = head_of(&samples[i]);
        bytes += bytes_of(&samples[i], &h);
    }
    INVAR_TRY(invar_alloc((void **)out, bytes + 1, 1, "samples for other ranks"));
    at = *out;
    for (int64_t i = 0; i < count; i++)
        at = rl_sample_pack(at, &samples[i]);
    *bytes_out = (int64_t)bytes;
    return INVAR_OK;
}

static invar_status corrupt(void)
{
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "samples of another rank are damaged: check its host and the network");
}

/* With these numbers no sum of sizes overflows, and they mean something. */
static bool rl_sample_plausible(const invar_rl_sample *s, const head *h, size_t left)
{
    uint64_t most = left / sizeof *s->routing;

    return h->prompt >= 1 && (uint64_t)h->prompt <= most && h->response >= 0 &&
           (uint64_t)h->response <= most && h->cuts >= 0 && (uint64_t)h->cuts <= most &&
           h->route_size >= 0 &&
           (uint64_t)h->route_size <= most / (uint64_t)(h->prompt + h->response) &&
           h->text_bytes >= -1 && (h->text_bytes < 0 || (uint64_t)h->text_bytes < left) &&
           h->finish >= INVAR_FINISH_NONE && h->finish <= INVAR_FINISH_ABORT;
}

static invar_status take_arrays(const char *at, invar_rl_sample *s, const head *h)
{
    part parts[PARTS];

    parts_of(parts, s, h);
    for (int i = 0; i < PARTS; at += parts[i++].bytes) {
        invar_free(*parts[i].data); // the prompt, or those of a sample that has gone on
        *parts[i].data = NULL;
        if (parts[i].bytes) {
            INVAR_TRY(invar_alloc(parts[i].data, parts[i].bytes, 1, "a sample of another rank"));
            memcpy(*parts[i].data, at, parts[i].bytes);
        }
    }
    return INVAR_OK;
}

/* Branches begin behind the prompt, one behind the other. */
static bool task_queue_ascend(const int64_t *cuts, const head *h)
{
    int64_t before = h->prompt;

    for (int64_t i = 0; i < h->cuts; before = cuts[i++])
        if (cuts[i] <= before || cuts[i] >= h->prompt + h->response)
            return false;
    return true;
}

/* `led`: whoever led the sample has chosen its prompt. */
static invar_status rl_sample_unpack(const char **at, const char *end, invar_rl_sample *s, bool led)
{
    size_t left = (size_t)(end - *at);
    head h;

    if (left < sizeof h)
        return corrupt();
    memcpy(&h, *at, sizeof h);
    if (!rl_sample_plausible(s, &h, left) || bytes_of(s, &h) > left)
        return corrupt();
    if (!led && (h.prompt != s->prompt_tokens || h.cuts != 0))
        return corrupt();
    INVAR_TRY(take_arrays(*at + sizeof h, s, &h));
    *at += bytes_of(s, &h);
    if (!task_queue_ascend(s->branch_starts, &h))
        return corrupt();
    if (led)
        s->current_version_from = h.prompt;
    s->prompt_tokens = h.prompt;
    s->n_tokens = h.prompt + h.response;
    s->n_cuts = h.cuts;
    s->turns = h.turns;
    if (s->response && s->response[h.text_bytes] != '\0')
        return corrupt();
    s->route_size = h.route_size;
    s->response_bytes = h.text_bytes < 0 ? 0 : (size_t)h.text_bytes;
    s->finish = (invar_finish)h.finish;
    s->arrival = h.arrival;
    s->speculated = h.speculated;
    return INVAR_OK;
}

/* ---- who has what ---------------------------------------------------------------------------- */

/* Those that sample other prompts than this rank, or wait for samples. */
static const invar_layout_axis *generate_args_samplers(const invar_generate_args *how)
{
    static const invar_layout_axis alone = {.size = 1};

    return how->layout ? &how->layout->rollout_group : &alone;
}

static int engine_of(const invar_generate_args *how, int rank)
{
    return how->layout ? invar_layout_engine_of(how->layout, rank) : rank;
}

/* Whole groups, unless some engine would have none, or some samples of groups are missing. */
static invar_index_range share_of(const invar_generate_args *how, int64_t count, int engine)
{
    int size = how->layout ? invar_layout_engine_count(how->layout) : 1;
    bool whole = count / how->per_prompt >= size && count % how->per_prompt == 0;
    int64_t each = whole ? how->per_prompt : 1;
    invar_index_range share = invar_layout_range_of(count / each, size, engine);

    return (invar_index_range){share.first * each, share.count * each};
}

/* What this rank samples, with the others of its engine. */
static invar_index_range own_share(const invar_generate_args *how, int64_t count)
{
    int engine = engine_of(how, generate_args_samplers(how)->rank);

    return engine < 0 ? (invar_index_range){0, 0} : share_of(how, count, engine);
}

/* What has arrived of all ranks. */
typedef struct arrivals {
    int64_t *sizes; /* (ranks) bytes of each */
    size_t *bytes;  /* (ranks) the same, as a move has them */
    char *data;     /* of all, in the order of ranks */
} arrivals;

static void arrivals_release(arrivals *a)
{
    invar_free(a->data);
    invar_free(a->bytes);
    invar_free(a->sizes);
}

static invar_status generate_args_exchange(arrivals *out, const invar_generate_args *how,
                                           const char *own, int64_t bytes)
{
    const invar_layout *layout = how->layout;
    const invar_layout_axis *axis = generate_args_samplers(how);
    size_t ranks = (size_t)axis->size, all = 0;

    INVAR_TRY(invar_alloc((void **)&out->sizes, ranks, sizeof *out->sizes, "sizes of samples"));
    INVAR_TRY(invar_alloc((void **)&out->bytes, ranks, sizeof *out->bytes, "sizes of samples"));
    for (size_t r = 0; r < ranks; r++)
        out->bytes[r] = sizeof bytes;
    out->sizes[axis->rank] = bytes;
    INVAR_TRY(invar_layout_gather(layout, axis, PHASE, out->sizes, out->bytes));
    for (size_t r = 0; r < ranks; r++) {
        if (out->sizes[r] < 0 || (size_t)out->sizes[r] > SIZE_MAX / 2 - all)
            return corrupt();
        out->bytes[r] = (size_t)out->sizes[r];
        all += out->bytes[r];
    }
    INVAR_TRY(invar_alloc((void **)&out->data, all + 1, 1, "samples of all ranks"));
    return invar_comm_run(axis->comm, &(invar_comm_transfer){.op = INVAR_COMM_ALLGATHERV,
                                                             .phase = PHASE,
                                                             .timeout_s = layout->seconds,
                                                             .in = own,
                                                             .out = out->data,
                                                             .out_bytes = out->bytes});
}

static invar_status arrivals_take(const arrivals *a, const invar_generate_args *how,
                                  invar_rl_sample *samples, int64_t count)
{
    const char *at = a->data;
    int own = engine_of(how, generate_args_samplers(how)->rank);

    for (int r = 0; r < generate_args_samplers(how)->size; r++) {
        const char *end = at + a->bytes[r];
        invar_index_range share;

        if (!invar_layout_engine_gives(how->layout, r) || engine_of(how, r) == own) {
            at = end;
            continue;
        }
        share = share_of(how, count, engine_of(how, r));
        for (int64_t i = 0; i < share.count; i++)
            INVAR_TRY(rl_sample_unpack(&at, end, &samples[share.first + i], false));
        if (at != end)
            return corrupt();
    }
    return INVAR_OK;
}

static invar_status generate_args_gather(const invar_generate_args *how, invar_rl_sample *samples,
                                         int64_t count)
{
    invar_index_range own = own_share(how, count);
    arrivals all = {NULL, NULL, NULL};
    char *packed = NULL;
    int64_t bytes;
    invar_status status;

    if (!invar_layout_engine_gives(how->layout, generate_args_samplers(how)->rank))
        own.count = 0;
    INVAR_TRY(pack_all(&packed, &bytes, samples + own.first, own.count));
    status = generate_args_exchange(&all, how, packed, bytes);
    if (status == INVAR_OK)
        status = arrivals_take(&all, how, samples, count);
    arrivals_release(&all);
    invar_free(packed);
    return status;
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* What a judge said of one sample, or who led it. */
typedef struct verdict {
    double reward;
    int64_t parts;
    int64_t rewarded;
} verdict;

/* The parts of all rewards, one after another, from rank 0. */
static invar_status share_parts(const invar_generate_args *how, invar_rl_sample *samples,
                                const verdict *verdicts, int64_t count)
{
    invar_reward_part *all = NULL, *at;
    invar_status status = INVAR_OK;
    bool gives = invar_ranks_is_leader(how->layout);
    size_t total = 0;

    for (int64_t i = 0; i < count; i++)
        total += (size_t)verdicts[i].parts;
    if (total == 0)
        return INVAR_OK;
    INVAR_TRY(invar_alloc((void **)&all, total, sizeof *all, "parts of rewards"));
    at = all;
    for (int64_t i = 0; gives && i < count; at += verdicts[i++].parts)
        put((char *)at, samples[i].parts.items, (size_t)verdicts[i].parts * sizeof *at);
    status = invar_ranks_broadcast(how->layout, "parts of rewards", 0, all, total * sizeof *all);
    at = all;
    for (int64_t i = 0; !gives && i < count && status == INVAR_OK; i++) {
        invar_reward_parts_release(&samples[i].parts); // of a leader: rank 0 has the same
        for (int64_t k = 0; k < verdicts[i].parts && status == INVAR_OK; k++, at++)
            status = invar_reward_parts_add(&samples[i].parts, at->name,
                                            strnlen(at->name, sizeof at->name), at->value,
                                            "parts of rewards from rank 0");
    }
    invar_free(all);
    return status;
}

/* Rank 0 has them; the others get them. */
static invar_status share_rewards(const invar_generate_args *how, invar_rl_sample *samples,
                                  int64_t count)
{
    verdict *verdicts = NULL;
    invar_status status = INVAR_OK;

    if (!how->layout)
        return INVAR_OK;
    INVAR_TRY(invar_alloc((void **)&verdicts, (size_t)count, sizeof *verdicts, "rewards"));
    for (int64_t i = 0; i < count; i++)
        verdicts[i] =
            (verdict){samples[i].reward, samples[i].parts.count, samples[i].has_plugin_reward};
    status = invar_ranks_broadcast(how->layout, "rewards", 0, verdicts,
                                   (size_t)count * sizeof *verdicts);
    for (int64_t i = 0; i < count && status == INVAR_OK; i++) {
        samples[i].reward = verdicts[i].reward;
        samples[i].has_plugin_reward = verdicts[i].rewarded != 0;
    }
    if (status == INVAR_OK)
        status = share_parts(how, samples, verdicts, count);
    invar_free(verdicts);
    return status;
}

static invar_status ask_plugin(const invar_generate_args *how, invar_rl_sample *samples,
                               int64_t count)
{
    if (invar_ranks_is_leader(how->layout))
        INVAR_TRY(invar_reward_source_run(how->judge, samples, count));
    return share_rewards(how, samples, count);
}

static invar_status tick(void *payload, int64_t samples_done, int64_t tokens_done)
{
    const invar_generate_args *how = payload;

    if (!how->no_collectives)
        invar_layout_heartbeat(how->layout);
    if (how->should_suspend && how->should_suspend(how->clock, samples_done))
        invar_rollout_suspend(how->rollout);
    return how->tick ? how->tick(how->payload, samples_done, tokens_done) : INVAR_OK;
}

/* What this rank samples. */
static invar_status run_own(const invar_generate_args *how, invar_rl_sample *samples, int64_t count)
{
    invar_index_range own = own_share(how, count);

    if (own.count)
        return invar_rollout_run(how->rollout, samples + own.first, own.count, how->sampling, tick,
                                 (void *)(uintptr_t)how);
    return how->tick ? how->tick(how->payload, 0, 0) : INVAR_OK; // who waits shows that others do
}

static invar_status gather_all(const invar_generate_args *how, invar_rl_sample *samples,
                               int64_t count)
{
    return generate_args_samplers(how)->size > 1 ? generate_args_gather(how, samples, count)
                                                 : INVAR_OK;
}

invar_status invar_generate_turn(const invar_generate_args *how, invar_rl_sample *samples,
                                 int64_t count)
{
    INVAR_TRY(run_own(how, samples, count));
    return gather_all(how, samples, count);
}

bool invar_generate_is_judged(const invar_generate_args *how, const invar_rl_sample *samples,
                              int64_t count, int64_t i)
{
    int64_t first = i;

    if (!how->judge->groups)
        return !samples[i].has_plugin_reward;
    while (first > 0 && samples[first - 1].group == samples[i].group)
        first--;
    for (; first < count && samples[first].group == samples[i].group; first++)
        if (!samples[first].has_plugin_reward)
            return true;
    return false;
}

invar_status invar_generate_check_judge(const invar_generate_args *how, const invar_rl_sample *s,
                                        const char *leader)
{
    bool reached;

    INVAR_TRY(invar_reward_source_reaches(&reached, how->judge, s));
    if (reached)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "plug-in %s: sample %" PRId64 " ends without a \"reward\", and nobody else "
                      "gives one (rm-type = none)",
                      leader, s->index);
}

invar_status invar_generate_judge(const invar_generate_args *how, invar_rl_sample *samples,
                                  int64_t count)
{
    return how->judge->asks ? ask_plugin(how, samples, count)
                            : invar_reward_source_run(how->judge, samples, count);
}

/* ---- agents ---------------------------------------------------------------------------------- */

/* Those that are judged stand side by side, and are back in their places afterwards. */
static invar_status judge_rest(const invar_generate_args *how, invar_rl_sample *samples,
                               int64_t count)
{
    invar_rl_sample *moved = NULL;
    int64_t *places = NULL, n = 0;
    invar_status status;

    INVAR_TRY(invar_alloc((void **)&moved, (size_t)count, sizeof *moved, "samples of agents"));
    status = invar_alloc((void **)&places, (size_t)count, sizeof *places, "samples of agents");
    for (int64_t i = 0; i < count && status == INVAR_OK; i++)
        if (invar_generate_is_judged(how, samples, count, i))
            places[n++] = i;
    for (int64_t k = 0; k < n; k++)
        moved[k] = samples[places[k]];
    if (n > 0)
        status = invar_generate_judge(how, moved, n);
    for (int64_t k = 0; k < n; k++)
        samples[places[k]] = moved[k];
    invar_free(places);
    invar_free(moved);
    return status;
}

static invar_status check_judge(const void *payload, const invar_rl_sample *s)
{
    return invar_generate_check_judge(payload, s, INVAR_AGENT_NAME);
}

static invar_status generate_args_lead(const invar_generate_args *how, invar_rl_sample *samples,
                                       int64_t count)
{
    const invar_agent_batch_options order = {.sampling = how->sampling,
                                             .evaluation = how->evaluation,
                                             .reward_part = how->judge->key,
                                             .unrewarded = how->judged ? check_judge : NULL,
                                             .tick = tick,
                                             .payload = (void *)(uintptr_t)how};

    INVAR_TRY(invar_agents_run(how->agents, samples, count, &order));
    for (int64_t i = 0; i < count && how->judged; i++) // records may be of another recipe
        if (!samples[i].has_plugin_reward)
            INVAR_TRY(check_judge(how, &samples[i]));
    return INVAR_OK;
}

static invar_status take_led(const char *packed, int64_t bytes, invar_rl_sample *samples,
                             int64_t count)
{
    const char *at = packed;

    for (int64_t i = 0; i < count; i++)
        INVAR_TRY(rl_sample_unpack(&at, packed + bytes, &samples[i], true));
    return at == packed + bytes ? INVAR_OK : corrupt();
}

/* Samples of rank 0, on all ranks. */
static invar_status share_led(const invar_generate_args *how, invar_rl_sample *samples,
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
        status = bytes > 0 ? invar_alloc((void **)&packed, (size_t)bytes, 1, "samples of rank 0")
                           : corrupt();
    if (status == INVAR_OK)
        status = invar_ranks_broadcast(how->layout, PHASE, 0, packed, (size_t)bytes);
    if (status == INVAR_OK && !gives)
        status = take_led(packed, bytes, samples, count);
    invar_free(packed);
    return status;
}

/* Rank 0 has the agents, and its model draws all that they ask for; the others wait. */
static invar_status run_agents(const invar_generate_args *how, invar_rl_sample *samples,
                               int64_t count)
{
    if (invar_ranks_is_leader(how->layout))
        INVAR_TRY(generate_args_lead(how, samples, count));
    else if (how->tick)
        INVAR_TRY(how->tick(how->payload, 0, 0));
    if (how->layout) {
        INVAR_TRY(share_led(how, samples, count));
        INVAR_TRY(share_rewards(how, samples, count));
    }
    return judge_rest(how, samples, count);
}

/* ---- a share --------------------------------------------------------------------------------- */

/* Samples are led by somebody, who ends and rewards them. */
static bool is_led(const invar_generate_args *how)
{
    return how->turns || how->agents_lead;
}

invar_status invar_generate_share(const invar_generate_args *how, invar_rl_sample *samples,
                                  int64_t count)
{
    if (how->agents_lead)
        return run_agents(how, samples, count);
    return how->turns ? invar_multi_turn_run(how, samples, count) : run_own(how, samples, count);
}

invar_status invar_generate_gather(const invar_generate_args *how, invar_rl_sample *samples,
                                   int64_t count)
{
    return is_led(how) ? INVAR_OK : gather_all(how, samples, count);
}

invar_status invar_generate_rewards(const invar_generate_args *how, invar_rl_sample *samples,
                                    int64_t count)
{
    return is_led(how) ? INVAR_OK : invar_generate_judge(how, samples, count);
}

invar_status invar_generate(const invar_generate_args *how, invar_rl_sample *samples, int64_t count)
{
    INVAR_TRY(invar_generate_share(how, samples, count));
    INVAR_TRY(invar_generate_gather(how, samples, count));
    return invar_generate_rewards(how, samples, count);
}
