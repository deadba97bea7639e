/*
 * convert.c - invar convert: converts weights between checkpoints and Hugging Face folders.
 *
 * A Hugging Face folder, a run or its folder of checkpoints becomes a Hugging Face folder or a
 * checkpoint to start from (ref-load). Equal inputs give equal bytes. Other files of the model,
 * such as the tokenizer, are copied; config.json changes only in the type of the weights. An
 * adapter can be merged into the weights, and the largest difference in log-probs is printed. A run
 * that trained adapters has only these; they become a PEFT folder.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json/json.h"
#include "cli/interactive.h"
#include "cli/ledger/ledger.h"
#include "cli/safe_text.h"
#include "engine/files/checkpoint/checkpoint.h"
#include "engine/files/hf/hf.h"
#include "engine/files/hf/peft.h"
#include "engine/model/lora/adapters.h"
#include "engine/run/context/run_context.h"
#include "engine/run/run_dir/paths.h"
#include "engine/train/trainer.h"

#include "base/invar_banned.h"

#define CONFIG "config.json"

/* formats whose weights are stored without scales */
static const char *const format_words[] = {
    [INVAR_FORMAT_FP32] = "fp32", [INVAR_FORMAT_BF16] = "bf16"};
static const invar_choices formats = {format_words, sizeof format_words / sizeof *format_words};

typedef struct settings {
    invar_option_choice dtype;
    const char *tokenizer;
    const char *ignored;
    const char *adapter;
    int64_t max_shard_bytes;
    int64_t step;
    bool to_checkpoint;
    bool force;
} settings;

static settings asked = {
    .dtype = {&formats, INVAR_FORMAT_FP32}, .ignored = "", .step = INVAR_CHECKPOINT_LATEST};

/* Comparison of log-probs of fixed tokens, all of which are finite. */
typedef struct merge_report {
    int64_t tokens;
    double largest; /* largest absolute difference */
} merge_report;

typedef struct conversion {
    const settings *set;
    const char *from;
    const char *to;
    invar_dtype dtype;
    invar_device dev;
    invar_model *model;
    merge_report merged;                /* result of merging an adapter; zeroed without one */
    bool adapters;                      /* the input has only adapters, which become a PEFT
                                           folder */
    invar_checkpoint_adapters trained;  /* adapter settings of the checkpoint, valid if `adapters`
                                           is set */
    char checkpoints[INVAR_PATH_SIZE];  /* storage of `from` if FROM is the folder of a run */
    const char *run;                    /* the input if it is the folder of a run, otherwise NULL */
    char uuid[INVAR_LEDGER_UUID_SIZE];  /* uuid of the run that wrote the checkpoint; empty if
                                           unknown */
    char base[INVAR_PATH_SIZE];         /* hf-checkpoint of the run; empty if unknown */
    char base_ignored[INVAR_PATH_SIZE]; /* hf-ignore-keys of the run */
    char source[INVAR_PATH_SIZE];       /* folder that has config.json */
    const char *config;                 /* folder whose config.json is copied */
    invar_hf_files files;               /* config.json and the other files that are copied */
    invar_checkpoint_lock claim;        /* lock on TO if it is not empty and receives a
                                           checkpoint */
} conversion;

static void release_conversion(conversion *j)
{
    invar_hf_files_release(&j->files);
    invar_model_free(j->model);
    invar_checkpoint_lock_release(&j->claim);
}

/* ---- checking the output folder -------------------------------------------------------------- */

/*
 * Locks TO. Fails if TO is the checkpoint folder of a run, even with --force, because the run
 * resumes from its contents.
 */
static invar_status lock_output(conversion *j)
{
    char shown[INVAR_PATH_SHOWN_SIZE];

    INVAR_TRY(invar_checkpoint_lock_acquire(&j->claim, j->to));
    if (!j->claim.owner.uuid[0])
        return INVAR_OK;
    invar_path_show(shown, j->to);
    return INVAR_FAIL(
        INVAR_E_STATE, 0,
        "%s holds checkpoints of run %.8s, which --force does not replace; give another "
        "folder",
        shown, j->claim.owner.uuid);
}

static invar_status check_output(conversion *j)
{
    char shown[INVAR_PATH_SHOWN_SIZE];
    bool empty;

    invar_path_show(shown, j->to);
    if (invar_path_same(j->from, j->to))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: FROM and TO are the same folder", shown);
    INVAR_TRY(invar_held_folder_is_empty(&empty, j->to));
    if (!empty && !j->set->force)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: not empty; --force writes into it all the same",
                          shown);
    return empty || !j->set->to_checkpoint ? INVAR_OK : lock_output(j);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Reads what the checkpoint contains and closes it. */
static void inspect_checkpoint(conversion *j, invar_checkpoint *checkpoint)
{
    (void)snprintf(j->source, sizeof j->source, "%s", invar_checkpoint_path(checkpoint));
    j->adapters = invar_checkpoint_has_set(checkpoint, INVAR_RUN_CONTEXT_ADAPTERS);
    j->trained = invar_checkpoint_state_of(checkpoint)->adapters;
    memcpy(j->uuid, invar_checkpoint_state_of(checkpoint)->uuid, sizeof j->uuid);
    invar_checkpoint_close(checkpoint);
}

/* Replaces the folder of a run, which has no config.json, by its folder of checkpoints. */
static invar_status find_checkpoints(conversion *j)
{
    char config[INVAR_PATH_SIZE], warning[INVAR_RUN_PATHS_WARNING_SIZE];

    INVAR_TRY(invar_hf_check_folder("FROM", j->from));
    INVAR_TRY(invar_path_join(config, sizeof config, j->from, CONFIG));
    if (invar_path_exists(config))
        return INVAR_OK;
    INVAR_TRY(invar_run_paths_checkpoints(j->checkpoints, warning, j->from, j->set->step));
    if (warning[0])
        invar_interactive_print(NULL, warning);
    j->run = j->from;
    j->from = j->checkpoints;
    return INVAR_OK;
}

/* Finds the folder with config.json: FROM itself or the chosen checkpoint in it. */
static invar_status find_source(conversion *j)
{
    invar_checkpoint *checkpoint = NULL;
    char latest[INVAR_PATH_SIZE];

    INVAR_TRY(find_checkpoints(j));
    INVAR_TRY(invar_path_join(latest, sizeof latest, j->from, "latest_checkpointed_iteration.txt"));
    if (!invar_path_exists(latest)) {
        if (j->set->step != INVAR_CHECKPOINT_LATEST)
            return INVAR_FAIL(INVAR_E_INVALID, 0, "--ckpt-step: FROM has no checkpoints");
        if (!invar_checkpoint_is_folder(j->from)) {
            INVAR_TRY(invar_error_advise(
                invar_hf_check_model("FROM", j->from), INVAR_E_NOTFOUND,
                "it may also be a run, a checkpoint or a folder of checkpoints"));
            return invar_path_join(j->source, sizeof j->source, j->from, "");
        }
        INVAR_TRY(invar_checkpoint_open_folder(&checkpoint, j->from));
        inspect_checkpoint(j, checkpoint);
        return INVAR_OK;
    }
    INVAR_TRY(
        invar_checkpoint_open(&checkpoint, j->from,
                              &(invar_checkpoint_open_options){
                                  .step = j->set->step, .settings = INVAR_CHECKPOINT_CKPT_STEP}));
    inspect_checkpoint(j, checkpoint);
    return INVAR_OK;
}

/* ---- adapters -------------------------------------------------------------------------------- */

enum { SAMPLES = 4, LONGEST = 64 };

/* Generates tokens that are spread over the vocabulary. */
static invar_status make_samples(invar_rl_samples *out, const invar_model_spec *spec)
{
    int64_t count = LONGEST < spec->max_positions ? LONGEST : spec->max_positions;

    for (uint32_t i = 0; i < SAMPLES; i++) {
        invar_rl_sample *s;
        INVAR_TRY(invar_rl_samples_append(&s, out));
        INVAR_TRY(INVAR_ALLOC(s->tokens, (size_t)count, "tokens"));
        for (uint32_t t = 0; t < count; t++)
            s->tokens[t] = (int32_t)((i * LONGEST + t) * UINT32_C(2654435761) % spec->vocab);
        s->prompt_tokens = 1;
        s->n_tokens = count;
    }
    return INVAR_OK;
}

static invar_status score_samples(float *out, const invar_model *model,
                                  const invar_rl_samples *samples, const invar_device *dev)
{
    invar_trainer_options o = {.plan = {.unit_rows = 1, .unit_count = 1, .micro_batch = SAMPLES},
                               .temperature = 1.0f};
    invar_trainer *trainer = NULL;
    invar_status status;

    INVAR_TRY(invar_trainer_new(&trainer, dev, &o));
    status = invar_trainer_score(trainer, model, samples->items, samples->count, out, NULL);
    invar_trainer_free(trainer);
    return status;
}

/* A NaN is an error, because no comparison with it is meaningful. */
static invar_status add_difference(merge_report *out, float merged, float adapted)
{
    double off = fabs((double)merged - (double)adapted);

    if (!isfinite(off))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "--merge: a log-probability is %g merged and %g of base and adapter; one "
                          "of the two has weights that are not finite, and nothing is written",
                          (double)merged, (double)adapted);
    if (off > out->largest)
        out->largest = off;
    return INVAR_OK;
}

static invar_status compare_models(merge_report *out, const invar_model *merged,
                                   const invar_model *adapted, const invar_device *dev)
{
    float a[SAMPLES * LONGEST], b[SAMPLES * LONGEST];
    invar_rl_samples samples = {.items = NULL};
    invar_status status = make_samples(&samples, &merged->spec);

    *out = (merge_report){0};
    if (status == INVAR_OK)
        status = score_samples(a, merged, &samples, dev);
    if (status == INVAR_OK)
        status = score_samples(b, adapted, &samples, dev);
    for (int64_t i = 0; i < samples.count && status == INVAR_OK; i++)
        out->tokens += samples.items[i].n_tokens - 1;
    for (int64_t i = 0; i < out->tokens && status == INVAR_OK; i++)
        status = add_difference(out, a[i], b[i]);
    invar_rl_samples_reset(&samples);
    return status;
}

/* Compares the merged model, rounded to the format that is written. */
static invar_status compare_in_format(merge_report *out, const invar_model *model,
                                      const invar_model *adapted, const invar_device *dev)
{
    invar_model *written = NULL;
    invar_status status;

    if (adapted->format == model->format)
        return compare_models(out, model, adapted, dev);
    INVAR_TRY(invar_model_new(&written, &model->spec, adapted->format, NULL, dev));
    for (int64_t i = 0; i < model->n_params; i++)
        memcpy(written->params[i].master.data, model->params[i].master.data,
               (size_t)invar_param_elements(&model->params[i]) * sizeof(float));
    status = invar_model_update_weights(written, dev);
    if (status == INVAR_OK)
        status = compare_models(out, written, adapted, dev);
    invar_model_free(written);
    return status;
}

/*
 * Merges the adapter. The written weights are compared with base and adapter in the written format.
 */
static invar_status merge_adapter(conversion *j)
{
    invar_format format = j->dtype == INVAR_DTYPE_F32 ? INVAR_FORMAT_FP32 : INVAR_FORMAT_BF16;
    const char *adapter = j->set->adapter;
    invar_model_spec spec = j->model->spec;
    invar_model *adapted = NULL;
    invar_status status;

    INVAR_TRY(invar_peft_spec(&spec.lora, adapter));
    INVAR_TRY(invar_model_new(&adapted, &spec, format, NULL, &j->dev));
    status = invar_peft_load(adapted, adapter, &j->dev);
    if (status == INVAR_OK)
        status = invar_run_context_load(adapted, j->from, j->set->step, &j->dev);
    if (status == INVAR_OK)
        status = invar_peft_merge(j->model, adapted, &j->dev);
    if (status == INVAR_OK)
        status = compare_in_format(&j->merged, j->model, adapted, &j->dev);
    invar_model_free(adapted);
    return status;
}

/* ---- the complete model ---------------------------------------------------------------------- */

static invar_status read_model(conversion *j)
{
    invar_model_spec spec;

    INVAR_TRY(invar_model_spec_read(&spec, j->source, j->set->ignored));
    INVAR_TRY(invar_model_new(&j->model, &spec, INVAR_FORMAT_FP32, NULL, &j->dev));
    INVAR_TRY(invar_run_context_load(j->model, j->from, j->set->step, &j->dev));
    if (!j->set->adapter)
        return INVAR_OK;
    return merge_adapter(j);
}

/* ---- the run that wrote the checkpoint ------------------------------------------------------- */

typedef char value[INVAR_PATH_SIZE];

static invar_status read_value_row(void *payload, const char *const *columns,
                                   const invar_ledger_value *values, int count)
{
    value *out = payload;

    (void)columns;
    if (values && count == 1 && values[0].type == INVAR_LEDGER_TYPE_TEXT &&
        values[0].bytes < sizeof *out)
        memcpy(*out, values[0].data, values[0].bytes + 1);
    return INVAR_OK;
}

static invar_ledger_value text_value(const char *text)
{
    return (invar_ledger_value){
        .type = INVAR_LEDGER_TYPE_TEXT, .data = text, .bytes = strlen(text)};
}

/*
 * Reads the value of a key in the newest segment of the run. *out is unchanged if the ledger has no
 * value.
 */
static invar_status query_key(value *out, const conversion *j, invar_ledger *ledger,
                              const char *key)
{
    const invar_ledger_argument arguments[] = {{"uuid", text_value(j->uuid)},
                                               {"key", text_value(key)}};
    const invar_ledger_select_request request = {
        .sql = "SELECT value FROM fact WHERE run = (SELECT run FROM run WHERE uuid = :uuid) "
               "AND scope = 'free' AND key = :key ORDER BY seg DESC LIMIT 1",
        .arguments = arguments,
        .n_arguments = 2,
        .row = read_value_row,
        .payload = out};

    return invar_ledger_select(ledger, &request);
}

/* Reads the keys about the base model if `folder` has the ledger of the run. */
static invar_status query_run_keys(conversion *j, const char *folder)
{
    char path[INVAR_PATH_SIZE];
    invar_ledger *ledger;
    invar_status status;

    INVAR_TRY(invar_path_join(path, sizeof path, folder, "ledger.db"));
    if (!invar_path_exists(path))
        return INVAR_OK;
    INVAR_TRY(invar_ledger_open(&ledger, path, &(invar_ledger_options){0}));
    status = query_key(&j->base, j, ledger, "hf-checkpoint");
    if (status == INVAR_OK)
        status = query_key(&j->base_ignored, j, ledger, "hf-ignore-keys");
    invar_ledger_close(ledger);
    return status;
}

/*
 * Finds the base model as the recipe named it; the ledger of the run records it, a checkpoint does
 * not. The run folder is FROM or contains the folder of checkpoints. Ledgers of other runs do not
 * have the uuid. An unreadable ledger causes only a warning.
 */
static invar_status find_base(conversion *j)
{
    static const char *const places[] = {"", "..", "../.."};
    const char *from = j->run ? j->run : j->from;

    for (size_t i = 0; i < sizeof places / sizeof *places && j->uuid[0] && !j->base[0]; i++) {
        char folder[INVAR_PATH_SIZE], line[sizeof((invar_error *)0)->message + 64];
        INVAR_TRY(invar_path_join(folder, sizeof folder, from, places[i]));
        if (query_run_keys(j, folder) == INVAR_OK)
            continue;
        (void)snprintf(line, sizeof line, "warning: the base of the run is not known: %s",
                       invar_error_last()->message);
        invar_interactive_print(NULL, line);
        invar_error_clear();
    }
    return INVAR_OK;
}

/*
 * Warns that the base model was not found. A relative path is resolved in the current folder,
 * because the ledger does not record where the run was started.
 */
static void warn_of_base(const char *base)
{
    char shown[INVAR_PATH_SHOWN_SIZE], whole[INVAR_PATH_HINT_SIZE];
    char line[sizeof shown + sizeof whole + 320];

    invar_path_show(shown, base);
    invar_path_absolute_hint(whole, base);
    (void)snprintf(line, sizeof line,
                   "warning: %s%s, which the run started from, %s: config.json describes the model "
                   "and has no other keys, such as bos_token_id%s",
                   shown, whole, invar_path_exists(base) ? "is another model" : "does not exist",
                   whole[0] ? "; to keep them, convert in the folder that the run was started in"
                            : "");
    invar_interactive_print(NULL, line);
}

/*
 * Chooses the folder whose config.json is copied. A checkpoint stores only keys that describe the
 * model; the base model has others, such as bos_token_id, and is used if it still describes the
 * same model.
 */
static invar_status find_config(conversion *j)
{
    invar_digest here, there;
    invar_model_spec spec;

    j->config = j->source;
    if (!j->base[0] || j->set->to_checkpoint)
        return INVAR_OK;
    INVAR_TRY(invar_model_spec_hash(&here, &j->model->spec));
    if (invar_model_spec_read(&spec, j->base, j->base_ignored) == INVAR_OK &&
        invar_model_spec_hash(&there, &spec) == INVAR_OK && invar_digest_equal(&here, &there)) {
        j->config = j->base;
        return INVAR_OK;
    }
    invar_error_clear();
    warn_of_base(j->base);
    return INVAR_OK;
}

/* Reads config.json of the chosen folder and sets the written type in it. */
static invar_status make_config(conversion *j)
{
    invar_checkpoint_blob *config = &j->files.items[0];
    char *text;

    INVAR_TRY(find_base(j));
    INVAR_TRY(find_config(j));
    INVAR_TRY(invar_hf_files_add(&j->files, j->config, CONFIG));
    INVAR_TRY(invar_hf_config(&text, &config->bytes, config->data, config->bytes, j->dtype));
    invar_free((void *)(uintptr_t)config->data);
    config->data = text;
    return INVAR_OK;
}

static invar_status read_inputs(conversion *j)
{
    const char *tokenizer = j->set->tokenizer ? j->set->tokenizer : j->source;
    char warning[INVAR_HF_WARNING_SIZE];

    INVAR_TRY(read_model(j));
    INVAR_TRY(make_config(j));
    INVAR_TRY(invar_hf_files_read(&j->files, tokenizer, ""));
    invar_hf_files_warning(warning, &j->files);
    if (warning[0])
        invar_interactive_print(NULL, warning);
    if (j->set->tokenizer && j->files.count == 1)
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0, "--tokenizer: the folder has no tokenizer");
    return INVAR_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

static invar_status write_checkpoint(const conversion *j)
{
    invar_checkpoint_state state = {.format = "fp32"};
    invar_checkpoint_content content = {.state = &state,
                                        .n_tensors = j->model->n_params,
                                        .blobs = j->files.items,
                                        .n_blobs = j->files.count};
    invar_checkpoint_tensor *tensors = NULL;
    invar_status status;

    INVAR_TRY(
        INVAR_ALLOC(tensors, (size_t)j->model->n_params, "the list of a checkpoint's tensors"));
    for (int64_t i = 0; i < j->model->n_params; i++)
        tensors[i] = (invar_checkpoint_tensor){.set = "model",
                                               .name = j->model->params[i].name,
                                               .tensor = j->model->params[i].master,
                                               .dev = &j->model->dev};
    content.tensors = tensors;
    status = invar_checkpoint_write(NULL, j->to, &content, &(invar_checkpoint_options){0});
    invar_free(tensors);
    return status;
}

/* ---- adapters only --------------------------------------------------------------------------- */

/* Rejects options about complete models, which would have no effect. */
static invar_status check_adapter_options(const settings *s)
{
    const char *option = s->to_checkpoint                           ? "--to-checkpoint"
                         : s->adapter                               ? "--merge"
                         : s->tokenizer                             ? "--tokenizer"
                         : s->max_shard_bytes > 0                   ? "--max-shard-bytes"
                         : s->dtype.value != (int)INVAR_FORMAT_FP32 ? "--dtype"
                                                                    : NULL;

    if (!option)
        return INVAR_OK;
    return INVAR_FAIL(
        INVAR_E_INVALID, 0,
        "FROM has adapters alone, which become a folder of peft in fp32: leave out %s", option);
}

/* The base model is not needed to convert adapters. */
static invar_status convert_adapters(conversion *j)
{
    invar_model_spec spec;

    INVAR_TRY(check_adapter_options(j->set));
    INVAR_TRY(find_base(j));
    INVAR_TRY(invar_model_spec_read(&spec, j->source, j->set->ignored));
    spec.lora = (invar_lora_spec){
        .rank = j->trained.rank, .alpha = j->trained.alpha, .rslora = j->trained.rslora};
    INVAR_TRY(invar_lora_patterns(&spec.lora, j->trained.ranks, j->trained.alphas));
    if (spec.lora.rank > 0)
        INVAR_TRY(invar_lora_targets(&spec.lora.targets, j->trained.targets));
    INVAR_TRY(invar_model_new(&j->model, &spec, INVAR_FORMAT_FP32, NULL, &j->dev));
    INVAR_TRY(invar_run_context_load(j->model, j->from, j->set->step, &j->dev));
    return invar_peft_save(j->model, NULL, j->to, j->base);
}

/* ---- the result ------------------------------------------------------------------------------ */

static invar_status print_result(const conversion *j)
{
    char hex[INVAR_DIGEST_HEX_SIZE], whole[INVAR_PATH_HINT_SIZE];
    invar_digest digest;

    INVAR_TRY(invar_model_hash(&digest, j->model, &j->dev));
    invar_digest_format(hex, &digest);
    printf("read      ");
    invar_safe_text_print(stdout, j->source);
    if (j->config == j->base) {
        invar_path_absolute_hint(whole, j->base);
        printf("\nconfig    ");
        invar_safe_text_print(stdout, j->base);
        printf("%s", whole);
    }
    if (j->set->adapter) {
        printf("\nmerged    ");
        invar_safe_text_print(stdout, j->set->adapter);
        printf("\nlog-probs %.3g is the largest difference from base and adapter, of %lld tokens",
               j->merged.largest, (long long)j->merged.tokens);
    }
    printf("\n%s  %s%s\nwritten   ", j->adapters ? "adapters" : "weights ", hex,
           j->dtype == INVAR_DTYPE_BF16 ? ", then rounded to bf16" : "");
    invar_safe_text_print(stdout, j->to);
    putchar('\n');
    return INVAR_OK;
}

/* ---- the command ----------------------------------------------------------------------------- */

static invar_status read_settings(conversion *j)
{
    const settings *s = j->set;

    j->dtype = invar_format_storage((invar_format)s->dtype.value);
    if (s->to_checkpoint && (j->dtype != INVAR_DTYPE_F32 || s->max_shard_bytes > 0))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "a checkpoint is fp32 in one file: --to-checkpoint goes with neither "
                          "--dtype nor --max-shard-bytes");
    return INVAR_OK;
}

static invar_status convert_weights(conversion *j)
{
    INVAR_TRY(read_settings(j));
    INVAR_TRY(check_output(j));
    INVAR_TRY(find_source(j));
    if (j->adapters) {
        INVAR_TRY(convert_adapters(j));
        return print_result(j);
    }
    INVAR_TRY(read_inputs(j));
    INVAR_TRY(j->set->to_checkpoint ? write_checkpoint(j)
                                    : invar_hf_save(j->model, NULL, j->to, j->dtype,
                                                    j->set->max_shard_bytes, &j->files));
    return print_result(j);
}

static const invar_option options[] = {
    {"dtype", INVAR_OPTION_WORD, &asked.dtype, "TYPE", "number format of the written weights", 0,
     0},
    {"max-shard-bytes", INVAR_OPTION_INT, &asked.max_shard_bytes, "N",
     "split tensors into files of at most this size (0: one file)", 0, INT64_MAX},
    {"ckpt-step", INVAR_OPTION_INT, &asked.step, "S",
     "step of the checkpoint to read (-1: the newest)", -1, INT64_MAX},
    {"tokenizer", INVAR_OPTION_TEXT, &asked.tokenizer, "DIR",
     "folder to copy tokenizer files from (FROM)", 0, 0},
    {"to-checkpoint", INVAR_OPTION_FLAG, &asked.to_checkpoint, NULL,
     "write a checkpoint of step 0, for ref-load, instead of a Hugging Face folder", 0, 0},
    {"force", INVAR_OPTION_FLAG, &asked.force, NULL, "write even if the folder is not empty", 0, 0},
    {"hf-ignore-keys", INVAR_OPTION_TEXT, &asked.ignored, "A,B",
     "unknown keys of FROM's config.json to ignore, because they change no number", 0, 0},
    {"merge", INVAR_OPTION_TEXT, &asked.adapter, "DIR",
     "folder of peft whose adapter is added to the weights", 0, 0},
    {0}};

static int cmd_convert(int argc, char **argv)
{
    conversion j = {.set = &asked,
                    .dev = {.backend = invar_backend_cpu(), .numerics = INVAR_NUMERICS_IEEE}};
    invar_status status;

    (void)argc;
    j.from = argv[0];
    j.to = argv[1];
    status = convert_weights(&j);
    release_conversion(&j);
    return invar_exit(status);
}

const invar_cli_command invar_cmd_convert = {
    .name = "convert",
    .summary = "convert weights between checkpoints and Hugging Face folders",
    .run = cmd_convert,
    .about =
        "Reads weights from a Hugging Face folder, a run or checkpoints, and writes them as a\n"
        "Hugging Face folder or as a checkpoint. Equal weights give equal bytes. Tokenizer files\n"
        "and generation_config.json are copied. Checkpoints with adapters alone become a folder "
        "of\n"
        "peft.\n",
    .options = options,
    .words = "FROM TO, two folders",
    .min_words = 2,
    .max_words = 2,
    .arguments = "FROM TO [--option value ...]"};
