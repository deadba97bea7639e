/*
 * peft.c - loads, merges and saves LoRA adapters in the format of peft.
 *
 * Reading is strict: each key of adapter_config.json is either known to change nothing, or checked,
 * or rejected, because an adapter with unsupported settings would load without an error and compute
 * something else. Weights are written last, so a writer that is killed leaves a folder without
 * weights.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/files/hf/peft.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/text.h"
#include "engine/files/hf/tensor_names.h"
#include "engine/files/safetensors.h"
#include "engine/model/graph/host_staging.h"
#include "engine/model/lora/adapters.h"
#include "engine/model/shard/full_param.h"
#include "engine/model/shard/param_loader.h"

#include "base/invar_banned.h"

#define CONFIG "adapter_config.json"
#define WEIGHTS "adapter_model.safetensors"
#define PREFIX "base_model.model."
#define NAME_SIZE (INVAR_HF_NAME_SIZE + sizeof PREFIX)
#define MAX_CONFIG (1 << 20)

/* Shape of an adapter in a file, without the padding of the rank. */
typedef struct extents {
    int64_t rows, cols;
} extents;

static extents extents_of(const invar_param *p)
{
    return invar_adapter_is_first(p) ? (extents){p->rank, p->cols} : (extents){p->rows, p->rank};
}

static void format_name(char out[NAME_SIZE], const invar_param *p, int64_t expert)
{
    char name[INVAR_HF_NAME_SIZE];

    invar_hf_name(name, p, expert);
    (void)snprintf(out, NAME_SIZE, PREFIX "%s", name);
}

/* ---- configuration --------------------------------------------------------------------------- */

static invar_status fail_key(const char *path, const char *key, const char *why)
{
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: \"%s\" %s", INVAR_SHOWN_PATH(path), key, why);
}

/* Returns true for a value that means "off": absent, null, false, or an empty list or object. */
static bool is_off(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0);
}

/* keys that change nothing once the tensors exist, or that are checked */
static const char *const known_keys[] = {"alpha_pattern",
                                         "auto_mapping",
                                         "base_model_name_or_path",
                                         "bias",
                                         "corda_config",
                                         "ensure_weight_tying",
                                         "eva_config",
                                         "exclude_modules",
                                         "inference_mode",
                                         "init_lora_weights",
                                         "layers_pattern",
                                         "layers_to_transform",
                                         "loftq_config",
                                         "lora_alpha",
                                         "lora_dropout",
                                         "lora_ga_config",
                                         "megatron_config",
                                         "megatron_core",
                                         "peft_type",
                                         "peft_version",
                                         "qalora_group_size",
                                         "r",
                                         "rank_pattern",
                                         "revision",
                                         "runtime_config",
                                         "target_modules",
                                         "task_type",
                                         "use_rslora"};

static bool is_known(const char *key)
{
    for (size_t i = 0; i < sizeof known_keys / sizeof *known_keys; i++)
        if (strcmp(key, known_keys[i]) == 0)
            return true;
    return false;
}

/* Returns true for initializations that leave the base unchanged. */
static bool keeps_base(const json_t *init)
{
    const char *word = json_string_value(init);

    return !word || strcmp(word, "gaussian") == 0 || strcmp(word, "orthogonal") == 0 ||
           strcmp(word, "eva") == 0;
}

/* Rejects settings that change the mathematics, known or not. */
static invar_status check_switches(const json_t *config, const char *path)
{
    const char *type = json_string_value(json_object_get(config, "peft_type"));
    const char *bias = json_string_value(json_object_get(config, "bias")), *key;
    json_t *value;

    if (!type || strcmp(type, "LORA") != 0)
        return fail_key(path, "peft_type", "is not LORA: Invar trains no other adapters");
    if (bias && strcmp(bias, "none") != 0)
        return fail_key(path, "bias", "is not none: biases of the base stay frozen");
    if (!keeps_base(json_object_get(config, "init_lora_weights")))
        return fail_key(path, "init_lora_weights", "has changed the weights of the base");
    json_object_foreach((json_t *)(uintptr_t)config, key, value)
    {
        if (!is_known(key) && !is_off(value))
            return fail_key(path, key, "is set: Invar has plain LoRA, without it");
    }
    return INVAR_OK;
}

static invar_status read_rslora(bool *out, const json_t *config, const char *path)
{
    const json_t *value = json_object_get(config, "use_rslora");

    *out = json_is_true(value);
    return *out || is_off(value) ? INVAR_OK
                                 : fail_key(path, "use_rslora", "is neither true nor false");
}

/* Formats a pattern as JSON; empty if there is no pattern. */
static invar_status dump_pattern(char out[INVAR_LORA_PATTERN_SIZE], const json_t *config,
                                 const char *key, const char *path)
{
    INVAR_AUTO_FREE char *text = NULL;
    const json_t *pattern = json_object_get(config, key);
    size_t bytes;

    out[0] = '\0';
    if (is_off(pattern))
        return INVAR_OK;
    INVAR_TRY(invar_json_dump(&text, &bytes, pattern, JSON_COMPACT | JSON_ENCODE_ANY, key));
    if (bytes >= INVAR_LORA_PATTERN_SIZE)
        return fail_key(path, key, "is longer than 4095 bytes");
    memcpy(out, text, bytes + 1);
    return INVAR_OK;
}

static invar_status read_patterns(invar_lora_spec *out, const json_t *config, const char *path)
{
    char ranks[INVAR_LORA_PATTERN_SIZE], alphas[INVAR_LORA_PATTERN_SIZE];

    INVAR_TRY(dump_pattern(ranks, config, "rank_pattern", path));
    INVAR_TRY(dump_pattern(alphas, config, "alpha_pattern", path));
    return invar_lora_patterns(out, ranks, alphas);
}

/* Checks rank and factor of each layer, however the patterns express them. */
static invar_status check_layers(const json_t *config, const char *path, const invar_model *model)
{
    const invar_lora_spec *lora = &model->spec.lora;
    invar_lora_spec own = {
        .rank = lora->rank, .alpha = lora->alpha, .rslora = lora->rslora, .targets = lora->targets};
    int64_t rank;
    float factor;
    char why[160];

    INVAR_TRY(read_patterns(&own, config, path));
    INVAR_TRY(invar_adapters_check(model->base, model->n_base, &own));
    for (int64_t i = 0; i < model->n_base; i++) {
        const invar_param *p = &model->base[i];
        if (!p->adapter)
            continue;
        INVAR_TRY(invar_lora_layer(&rank, &factor, &own, p));
        if (rank == p->adapter->rank && factor == p->adapter->factor)
            continue;
        (void)snprintf(why, sizeof why, "of %.80s is another than that of the recipe's %s", p->name,
                       rank == p->adapter->rank ? "alpha-pattern" : "rank-pattern");
        return fail_key(path, rank == p->adapter->rank ? "alpha_pattern" : "rank_pattern", why);
    }
    return INVAR_OK;
}

static invar_status check_factor(const json_t *config, const char *path,
                                 const invar_lora_spec *lora)
{
    double rank = json_number_value(json_object_get(config, "r"));
    double alpha = json_number_value(json_object_get(config, "lora_alpha"));
    char why[96];
    bool rslora;

    if (rank != (double)lora->rank) {
        (void)snprintf(why, sizeof why, "is %.9g, but lora-rank is %" PRId64, rank, lora->rank);
        return fail_key(path, "r", why);
    }
    if ((float)alpha != lora->alpha) {
        (void)snprintf(why, sizeof why, "is %.9g, but lora-alpha is %.9g", alpha,
                       (double)lora->alpha);
        return fail_key(path, "lora_alpha", why);
    }
    INVAR_TRY(read_rslora(&rslora, config, path));
    if (rslora != lora->rslora)
        return fail_key(path, "use_rslora",
                        rslora ? "is true, but use-rslora is false"
                               : "is not true, but use-rslora is true");
    return INVAR_OK;
}

static invar_status check_config(const invar_model *model, const char *dir)
{
    INVAR_AUTO_JSON json_t *config = NULL;
    char path[INVAR_PATH_SIZE];

    INVAR_TRY(invar_path_join(path, sizeof path, dir, CONFIG));
    INVAR_TRY(invar_json_read(&config, path, MAX_CONFIG));
    INVAR_TRY(check_switches(config, path));
    INVAR_TRY(check_factor(config, path, &model->spec.lora));
    return check_layers(config, path, model);
}

/* Reads "all-linear" or a list of names, as in target-modules. */
static invar_status read_targets(uint32_t *out, const json_t *targets, const char *path)
{
    char words[256] = "";
    size_t used = 0;

    if (json_is_string(targets))
        return invar_lora_targets(out, json_string_value(targets));
    for (size_t i = 0; i < json_array_size(targets); i++) {
        const char *name = json_string_value(json_array_get(targets, i));
        if (!name || used + strlen(name) + 2 > sizeof words)
            return fail_key(path, "target_modules", "is no list of names of layers");
        used += (size_t)snprintf(words + used, sizeof words - used, "%s%s", i ? "," : "", name);
    }
    return invar_lora_targets(out, words);
}

static invar_status read_spec(invar_lora_spec *out, const json_t *config, const char *path)
{
    double rank = json_number_value(json_object_get(config, "r"));
    // 0 if it is not a number
    double alpha = json_number_value(json_object_get(config, "lora_alpha"));

    INVAR_TRY(check_switches(config, path));
    if (!(rank >= 1 && rank <= 4096) || rank != (double)(int64_t)rank)
        return fail_key(path, "r", "is no rank from 1 to 4096");
    if (!(alpha >= 1e-6 && alpha <= 1e6))
        return fail_key(path, "lora_alpha", "is no number from 1e-6 to 1e6");
    *out = (invar_lora_spec){.rank = (int64_t)rank, .alpha = (float)alpha};
    INVAR_TRY(read_rslora(&out->rslora, config, path));
    INVAR_TRY(read_patterns(out, config, path));
    return read_targets(&out->targets, json_object_get(config, "target_modules"), path);
}

invar_status invar_peft_spec(invar_lora_spec *out, const char *dir)
{
    INVAR_AUTO_JSON json_t *config = NULL;
    char path[INVAR_PATH_SIZE];

    INVAR_TRY(invar_path_join(path, sizeof path, dir, CONFIG));
    INVAR_TRY(invar_json_read(&config, path, MAX_CONFIG));
    return read_spec(out, config, path);
}

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct adapter_reader {
    const invar_model *model;
    const invar_safetensors *file;
    char path[INVAR_PATH_SIZE];
    invar_param_loader *fill;
} adapter_reader;

static invar_status bad_tensor(const adapter_reader *r, const char *name, const char *why)
{
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: tensor '%s': %s", INVAR_SHOWN_PATH(r->path),
                      INVAR_QUOTED(name), why);
}

/* Reads one expert's values, padded with zeros to the full rank; `out` must be zeroed. */
static invar_status read_expert(float *out, adapter_reader *r, const invar_param *p, int64_t expert)
{
    INVAR_AUTO_FREE float *values = NULL;
    extents e = extents_of(p);
    const invar_safetensor *t;
    char name[NAME_SIZE];

    format_name(name, p, expert);
    t = invar_safetensors_find(r->file, name);
    if (!t)
        return bad_tensor(r, name, "is missing: target-modules must be those of the folder");
    INVAR_TRY(invar_safetensors_expect(r->file, t, t->type, 2, (const int64_t[]){e.rows, e.cols}));
    INVAR_TRY(INVAR_ALLOC(values, (size_t)t->elements, "an adapter's values"));
    INVAR_TRY(invar_safetensors_read_f32(values, r->file, t, 0, t->elements));
    for (int64_t i = 0; i < e.rows; i++)
        memcpy(out + i * p->cols, values + i * e.cols, (size_t)e.cols * sizeof *out);
    return INVAR_OK;
}

static invar_status read_param(adapter_reader *r, const invar_param *p)
{
    INVAR_AUTO_FREE float *whole = NULL; // one adapter of all experts
    int64_t all = invar_param_all_elements(p);
    float *near;

    if (p->local.experts == 0)
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC_ZEROED(whole, (size_t)all, "an adapter"));
    for (int64_t e = 0; e < p->stack; e++)
        INVAR_TRY(read_expert(whole + e * (all / p->stack), r, p, e));
    INVAR_TRY(invar_param_loader_buffer_all(&near, r->fill, p));
    invar_param_shard_extract(near, p, &p->local, whole);
    return invar_param_loader_store(r->fill);
}

/* Rejects tensors that are not adapters of the model. */
static invar_status check_known(const adapter_reader *r)
{
    for (int64_t i = 0; i < invar_safetensors_count(r->file); i++) {
        const char *name = invar_safetensors_at(r->file, i)->name;
        bool named = strncmp(name, PREFIX, strlen(PREFIX)) == 0;
        int64_t expert;
        const invar_param *p =
            named ? invar_hf_find(&expert, r->model, name + strlen(PREFIX)) : NULL;
        if (!p || p->kind != INVAR_PARAM_ADAPTER)
            return bad_tensor(r, name,
                              "is no adapter of this model: target-modules must be those "
                              "of the folder");
    }
    return INVAR_OK;
}

invar_status invar_peft_load(invar_model *model, const char *dir, const invar_device *dev)
{
    INVAR_AUTO(invar_safetensors_release) invar_safetensors *file = NULL;
    INVAR_AUTO(invar_param_loader_release) invar_param_loader fill;
    adapter_reader r = {.model = model, .fill = &fill};

    invar_param_loader_init(&fill, model, dev);
    INVAR_TRY(check_config(model, dir));
    INVAR_TRY(invar_path_join(r.path, sizeof r.path, dir, WEIGHTS));
    INVAR_TRY(invar_error_advise(invar_safetensors_open(&file, r.path), INVAR_E_CORRUPT,
                                 "download or copy it again"));
    r.file = file;
    INVAR_TRY(check_known(&r));
    for (int64_t i = 0; i < model->n_params; i++)
        INVAR_TRY(read_param(&r, &model->params[i]));
    return INVAR_OK;
}

/* ---- merging --------------------------------------------------------------------------------- */

/* w += factor * b a, for one expert. */
static void merge_expert(float *w, const float *a, const float *b, const invar_param *of,
                         int64_t rank, double factor)
{
    for (int64_t n = 0; n < of->rows; n++)
        for (int64_t k = 0; k < of->cols; k++) {
            double sum = 0;
            for (int64_t r = 0; r < rank; r++)
                sum += (double)b[n * rank + r] * (double)a[r * of->cols + k];
            w[n * of->cols + k] = (float)((double)w[n * of->cols + k] + factor * sum);
        }
}

invar_status invar_peft_merge(invar_model *to, const invar_model *adapted, const invar_device *dev)
{
    INVAR_CHECK(to->n_params == adapted->n_base);
    for (int64_t i = 0; i < adapted->n_base; i++) {
        const invar_param *p = &adapted->base[i], *ab = p->adapter;
        for (int64_t e = 0; ab && e < p->stack; e++)
            merge_expert((float *)to->params[i].master.data + e * p->rows * p->cols,
                         (const float *)ab[0].master.data + e * ab[0].rows * ab[0].cols,
                         (const float *)ab[1].master.data + e * ab[1].rows * ab[1].cols, p,
                         ab[0].rows, (double)ab[0].factor);
    }
    return invar_model_update_weights(to, dev);
}

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct adapter_writer {
    const invar_model *model;
    const invar_tensor *masters; /* NULL for the model's own */
    const char *dir;
    char (*names)[NAME_SIZE];  /* (count) */
    invar_safetensor *tensors; /* (count) */
    int64_t count;
    invar_full_param_reader whole;
} adapter_writer;

static invar_status list_tensors(adapter_writer *w)
{
    const invar_model *m = w->model;
    int64_t next = 0;

    for (int64_t i = 0; i < m->n_params; i++)
        w->count += m->params[i].stack;
    INVAR_TRY(INVAR_ALLOC(w->names, (size_t)w->count, "a list"));
    INVAR_TRY(INVAR_ALLOC(w->tensors, (size_t)w->count, "a list"));
    for (int64_t i = 0; i < m->n_params; i++)
        for (int64_t e = 0; e < m->params[i].stack; e++, next++) {
            extents x = extents_of(&m->params[i]);
            format_name(w->names[next], &m->params[i], e);
            w->tensors[next] = (invar_safetensor){.name = w->names[next],
                                                  .type = INVAR_SAFETENSORS_F32,
                                                  .rank = 2,
                                                  .shape = {x.rows, x.cols},
                                                  .elements = x.rows * x.cols};
        }
    return INVAR_OK;
}

static invar_status read_full_param(const float **out, adapter_writer *w, int64_t param)
{
    const invar_param *p = &w->model->params[param];
    const invar_full_param_source source = {w->model, param,
                                            w->masters ? &w->masters[param] : invar_param_f32(p),
                                            w->masters ? NULL : &w->model->dev};

    return invar_full_param_reader_read(out, &w->whole, &source, 0, p->stack);
}

static invar_status write_param(adapter_writer *w, invar_safetensors_writer *file, int64_t param)
{
    const invar_param *p = &w->model->params[param];
    extents x = extents_of(p);
    const float *values;

    INVAR_TRY(read_full_param(&values, w, param));
    for (int64_t e = 0; e < p->stack; e++)
        for (int64_t i = 0; i < x.rows; i++)
            INVAR_TRY(
                invar_safetensors_write_f32(file, values + (e * p->rows + i) * p->cols, x.cols));
    return INVAR_OK;
}

/* Sends this rank's shards of all adapters to rank 0. */
static invar_status send_to_rank0(adapter_writer *w)
{
    const float *none;

    for (int64_t i = 0; i < w->model->n_params; i++)
        INVAR_TRY(read_full_param(&none, w, i));
    return INVAR_OK;
}

static invar_status write_weights(adapter_writer *w)
{
    INVAR_AUTO(invar_safetensors_writer_release) invar_safetensors_writer *file = NULL;
    static const invar_safetensors_pair metadata = {"format", "pt"};
    char path[INVAR_PATH_SIZE];

    INVAR_TRY(invar_path_join(path, sizeof path, w->dir, WEIGHTS));
    INVAR_TRY(invar_safetensors_create(&file, path, w->tensors, w->count, &metadata, 1));
    for (int64_t i = 0; i < w->model->n_params; i++)
        INVAR_TRY(write_param(w, file, i));
    return invar_safetensors_commit(file);
}

/* Formats a number in the shortest form: 16, not 16.0. */
static json_t *number_json(float value)
{
    return value == (float)(int64_t)value ? json_integer((json_int_t)value)
                                          : json_real((double)value);
}

static json_t *targets_of(const invar_lora_spec *lora)
{
    json_t *list = json_array();
    const char *name;

    for (int i = 0; list && (name = invar_lora_target(lora->targets, i)); i++)
        if (json_array_append_new(list, json_string(name)) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

/* Adds a pattern, which was checked before, if it is not empty. */
static invar_status add_pattern(json_t *config, const char *key, const char *text)
{
    json_t *pattern;

    if (!text[0])
        return INVAR_OK;
    INVAR_TRY(invar_json_parse(&pattern, key, text, strlen(text)));
    return json_object_set_new(config, key, pattern) == 0
               ? INVAR_OK
               : INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for %s", CONFIG);
}

static json_t *make_config(const invar_lora_spec *lora, const char *base)
{
    json_t *path = base[0] ? json_string(base) : json_null();

    return json_pack("{s:s, s:s, s:o, s:I, s:o, s:f, s:s, s:o, s:b, s:b, s:b, s:b}", "peft_type",
                     "LORA", "task_type", "CAUSAL_LM", "base_model_name_or_path", path, "r",
                     (json_int_t)lora->rank, "lora_alpha", number_json(lora->alpha), "lora_dropout",
                     0.0, "bias", "none", "target_modules", targets_of(lora), "fan_in_fan_out", 0,
                     "inference_mode", 1, "use_dora", 0, "use_rslora", (int)lora->rslora);
}

static invar_status write_config(const adapter_writer *w, const char *base)
{
    INVAR_AUTO_JSON json_t *config = make_config(&w->model->spec.lora, base);
    INVAR_AUTO_FREE char *text = NULL;
    char path[INVAR_PATH_SIZE];
    size_t bytes;

    INVAR_TRY(invar_path_join(path, sizeof path, w->dir, CONFIG));
    INVAR_TRY(add_pattern(config, "rank_pattern", w->model->spec.lora.ranks));
    INVAR_TRY(add_pattern(config, "alpha_pattern", w->model->spec.lora.alphas));
    INVAR_TRY(invar_json_dump(&text, &bytes, config, JSON_INDENT(2) | JSON_SORT_KEYS, CONFIG));
    text[bytes++] = '\n'; // replaces the NUL
    return invar_file_write(path, text, bytes);
}

/* Writes configuration and weights; weights come last. */
static invar_status save_adapters(adapter_writer *w, const char *base)
{
    char path[INVAR_PATH_SIZE];

    INVAR_TRY(list_tensors(w));
    INVAR_TRY(invar_held_folder_make(w->dir));
    INVAR_TRY(invar_path_join(path, sizeof path, w->dir, WEIGHTS));
    unlink(path);
    INVAR_TRY(invar_held_folder_sync(w->dir));
    INVAR_TRY(write_config(w, base));
    return write_weights(w);
}

invar_status invar_peft_save(const invar_model *model, const invar_tensor *masters, const char *dir,
                             const char *base)
{
    adapter_writer w = {.model = model, .masters = masters, .dir = dir};
    bool leads = !model->layout || invar_comm_rank(model->layout->world) == 0;
    invar_status status = leads ? save_adapters(&w, base) : send_to_rank0(&w);

    invar_free(w.names);
    invar_free(w.tensors);
    invar_full_param_reader_release(&w.whole);
    return status;
}
