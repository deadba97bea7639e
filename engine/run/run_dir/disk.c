/*
 * disk.c - computes the disk space that the checkpoints of a run need.
 *
 * Models that have shapes and no memory give the tensors of a checkpoint, and the code that writes
 * checkpoints measures them. The settings of the run give the number of checkpoints, and the file
 * system gives the free bytes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/run_dir/disk.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/alloc.h"
#include "base/minmax.h"
#include "base/text.h"
#include "engine/config/config.h"
#include "engine/files/checkpoint/checkpoint.h"
#include "engine/run/memory_plan/phase_arena.h"

#include "base/invar_banned.h"

/* ---- bytes of one checkpoint ----------------------------------------------------------------- */

/* Models with shapes and no memory, and their tensors in a checkpoint. */
typedef struct model_shapes {
    invar_phase_arena stage;
    invar_model_set models;
    invar_checkpoint_tensor *tensors;
    int64_t count;
} model_shapes;

int invar_disk_parts(invar_checkpoint_part out[INVAR_DISK_PARTS], const invar_model_set *models,
                     const invar_config *config)
{
    bool adapted = invar_model_is_adapted(models->actor); // saved as its adapters only
    int n = 0;

    out[n++] = (invar_checkpoint_part){
        adapted ? INVAR_RUN_CONTEXT_ADAPTERS : "model",
        adapted ? INVAR_RUN_CONTEXT_ADAPTERS ".exp_avg" : "model.exp_avg",
        adapted ? INVAR_RUN_CONTEXT_ADAPTERS ".exp_avg_sq" : "model.exp_avg_sq", models->actor,
        NULL};
    if (models->critic)
        out[n++] = (invar_checkpoint_part){"critic", "critic.exp_avg", "critic.exp_avg_sq",
                                           models->critic, NULL};
    if (models->reference && config->ref_update_interval > 0)
        out[n++] = (invar_checkpoint_part){"reference", NULL, NULL, models->reference, NULL};
    return n;
}

static invar_status make_models(model_shapes *s, const invar_run_context *session)
{
    static const invar_model_role roles[] = {INVAR_MODEL_ACTOR, INVAR_MODEL_REFERENCE,
                                             INVAR_MODEL_CRITIC};
    const invar_model_specs specs = invar_run_context_model_specs(session, INVAR_RUN_CONTEXT_LEARN);

    invar_phase_arena_init(&s->stage, &session->dev, 0);
    s->stage.backend.memory.exact_size = false;
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        INVAR_TRY(invar_model_set_make(&s->models, roles[i], &specs, NULL, &s->stage.dev));
    return INVAR_OK;
}

static void add_set(model_shapes *s, const char *set, const invar_model *model)
{
    for (int64_t i = 0; i < model->n_params; i++)
        s->tensors[s->count++] = (invar_checkpoint_tensor){
            set, model->params[i].name, invar_param_full_tensor(&model->params[i], NULL), NULL};
}

static invar_status list_tensors(model_shapes *s, const invar_run_context *session)
{
    const bool moments = !session->config->no_save_optim && !session->config->debug_rollout_only;
    invar_checkpoint_part parts[INVAR_DISK_PARTS];
    int64_t most = 0;
    int n;

    INVAR_TRY(make_models(s, session));
    n = invar_disk_parts(parts, &s->models, session->config);
    for (int i = 0; i < n; i++)
        most += 3 * parts[i].model->n_params;
    INVAR_TRY(INVAR_ALLOC(s->tensors, (size_t)most, "the list of a checkpoint's tensors"));
    for (int i = 0; i < n; i++) {
        add_set(s, parts[i].masters, parts[i].model);
        if (!moments || !parts[i].m)
            continue;
        add_set(s, parts[i].m, parts[i].model);
        add_set(s, parts[i].v, parts[i].model);
    }
    return INVAR_OK;
}

static invar_status measure_listed(int64_t *bytes_out, const model_shapes *s,
                                   const invar_disk_inputs *inputs)
{
    const invar_run_context *session = inputs->session;
    invar_checkpoint_state state = {.n_cursors = 1, .cursors[0] = {.name = "train"}};
    invar_checkpoint_blob blobs[1 + INVAR_HF_FILES] = {{.name = "config.json"}};
    invar_checkpoint_content content = {.state = &state,
                                        .tensors = s->tensors,
                                        .n_tensors = s->count,
                                        .blobs = blobs,
                                        .n_blobs = 1 + (inputs->files ? inputs->files->count : 0)};
    invar_status status;
    char *text;

    memset(state.uuid, '0', sizeof state.uuid - 1);
    if (inputs->files)
        memcpy(&blobs[1], inputs->files->items, (size_t)inputs->files->count * sizeof *blobs);
    if (session->spec.lora.rank > 0)
        invar_run_context_describe_adapters(&state.adapters, session);
    INVAR_TRY(invar_model_spec_json(&text, &blobs[0].bytes, &session->spec, "float32"));
    status = invar_checkpoint_measure(bytes_out, &content);
    invar_free(text);
    return status;
}

static invar_status measure_one(int64_t *bytes_out, const invar_disk_inputs *inputs)
{
    model_shapes *s = NULL;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC_ZEROED(s, 1, "the shapes of a checkpoint"));
    status = inputs->bare ? INVAR_OK : list_tensors(s, inputs->session);
    if (status == INVAR_OK)
        status = measure_listed(bytes_out, s, inputs);
    invar_free(s->tensors);
    invar_model_set_release(&s->models);
    invar_free(s);
    return status;
}

/* ---- number of checkpoints ------------------------------------------------------------------- */

/* Returns the number of rollouts from `first` on that save-interval saves, and 1 for the last. */
static int64_t count_saves(const invar_train_settings *set, int64_t first)
{
    const invar_run_schedule *course = &set->run_schedule;
    const invar_run_progress at = {.rollout = first, .step = first * set->steps_per_rollout};
    int64_t interval = course->save_interval, end;

    if (course->rollouts == 0) // num-epoch with data that were not read
        return 1;
    if (invar_run_schedule_ended(course, &at))
        return 0;
    end = invar_run_schedule_steps(course, &at, set->steps_per_rollout) / set->steps_per_rollout;
    return 1 + (interval > 0 ? (end - 1) / interval - first / interval : 0);
}

static invar_status count_checkpoints(invar_disk *out, const invar_disk_inputs *inputs)
{
    const invar_config *c = inputs->session->config;
    int64_t keep = c->keep_checkpoints;
    int64_t all = count_saves(inputs->settings, 0), others = 0, first = 0, step;

    // an error of the file system is left to the code that writes there
    if (!inputs->fresh) {
        invar_status status = invar_checkpoint_count(&out->had, &others, out->save);

        if (status == INVAR_E_NOMEM)
            return status;
    }
    // the rollout after the newest checkpoint
    if (!inputs->fresh && invar_checkpoint_latest(&step, inputs->save) == INVAR_OK)
        first = (step + 1) / inputs->settings->steps_per_rollout;
    invar_error_clear();
    out->n_remaining = count_saves(inputs->settings, first);
    if (keep > 0) { // one more, for the checkpoint being written
        all = invar_min_i64(all, keep + 1);
        out->n_remaining = invar_min_i64(out->n_remaining, invar_max_i64(keep - others, 0) + 1);
    }
    out->keep = keep;
    out->n_required = keep > 0 ? out->n_remaining : invar_min_i64(out->n_remaining, 1);
    if (c->save_interval_minutes > 0.0)
        out->by_time = INVAR_CHECKPOINT_KEPT_BY_TIME;
    out->max_checkpoints = all + out->by_time;
    return INVAR_OK;
}

/* ---- the file system ------------------------------------------------------------------------- */

/* Returns the free bytes at `folder`, or at the nearest existing folder above it; -1 if unknown,
   or if nothing can be written there. */
static int64_t free_bytes(const char *folder)
{
    char path[INVAR_PATH_SIZE];
    struct statvfs info;

    if (invar_path_check_folder(folder) != INVAR_OK ||
        invar_path_nearest_existing(path, folder) != INVAR_OK) {
        invar_error_clear();
        return -1;
    }
    if (statvfs(path, &info) != 0 || info.f_blocks == 0 ||
        info.f_bavail > (uint64_t)INT64_MAX / (info.f_frsize ? info.f_frsize : 1))
        return -1;
    return (int64_t)(info.f_bavail * info.f_frsize);
}

invar_status invar_disk_plan(invar_disk *out, const invar_disk_inputs *inputs)
{
    *out = (invar_disk){.free = -1};
    if (!inputs->save[0])
        return INVAR_OK;
    (void)snprintf(out->save, sizeof out->save, "%s", inputs->save);
    INVAR_TRY(measure_one(&out->checkpoint, inputs));
    INVAR_TRY(count_checkpoints(out, inputs));
    out->free = free_bytes(out->save);
    return INVAR_OK;
}

int64_t invar_disk_bytes(const invar_disk *disk, int64_t count)
{
    return count > 0 && disk->checkpoint > INT64_MAX / count ? INT64_MAX : count * disk->checkpoint;
}

/* A measured checkpoint may be up to INVAR_DISK_SLACK bytes too large. */
bool invar_disk_fits(const invar_disk *disk, int64_t count)
{
    return disk->free < 0 || count == 0 ||
           invar_disk_bytes(disk, count) / count - INVAR_DISK_SLACK <= disk->free / count;
}

bool invar_disk_has_room(const invar_disk *disk)
{
    const int64_t after = disk->free - disk->checkpoint;

    if (disk->free < 0)
        return true;
    // an older one by time is removed when this one exists
    return after >= 0 &&
           after + (disk->had < INVAR_CHECKPOINT_KEPT_BY_TIME ? 0 : disk->checkpoint) >=
               invar_disk_bytes(disk, disk->n_remaining);
}

void invar_disk_describe(char out[INVAR_DISK_TEXT_SIZE], const invar_disk *disk, int64_t count)
{
    const double mib = 1024.0 * 1024.0;
    char shown[INVAR_PATH_SHOWN_SIZE];

    invar_path_show(shown, disk->save);
    (void)snprintf(out, INVAR_DISK_TEXT_SIZE,
                   "%.500s: the disk has %.1f MiB free, and the run will add %" PRId64
                   " checkpoint%s of %.1f MiB",
                   shown, (double)disk->free / mib, count, invar_text_plural(count),
                   (double)disk->checkpoint / mib);
}

invar_status invar_disk_check(const invar_disk *disk)
{
    char text[INVAR_DISK_TEXT_SIZE];

    if (invar_disk_fits(disk, disk->n_required))
        return INVAR_OK;
    invar_disk_describe(text, disk, disk->n_required);
    return INVAR_FAIL(INVAR_E_IO, ENOSPC,
                      "%s at one time: give another folder with save, %sor remove there the "
                      "folders iter_* of checkpoints that are not needed",
                      text, disk->keep > 1 ? "set a smaller keep-checkpoints, " : "");
}
