/*
 * manifest.c - defines the points whose digests the following steps record.
 *
 * A manifest is addressed by its content: its hash is over its points. Runs with equal points share
 * one, and an import finds it again. It belongs to no entry. Its hash protects it, because every
 * row of digests is hashed together with the hash of its manifest.
 *
 * Invariants: L8 (docs/ledger.md)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sort.h"
#include "ledger/internal.h"
#include "ledger/validate.h"

#include "base/invar_banned.h"

enum { DIMS = 8, NUMBER_BYTES = 21 /* longest int64 in a list, with its comma */ };

/* The columns of a point without its manifest, and the memory of the texts of shape and inputs. */
typedef struct point_row {
    invar_ledger_value values[INVAR_MANIFEST_POINT_COLUMNS];
    char shape[DIMS * NUMBER_BYTES + 3];
    size_t inputs_size;
    char inputs[];
} point_row;

static void write_list(char *out, size_t size, const int64_t *numbers, size_t count)
{
    size_t used = 0;

    out[used++] = '[';
    for (size_t i = 0; i < count; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%" PRId64, i ? "," : "", numbers[i]);
    INVAR_CHECK(used + 2 <= size);
    out[used++] = ']';
    out[used] = '\0';
}

static void point_row_fill(point_row *row, const invar_ledger_point *point, size_t ord)
{
    write_list(row->shape, sizeof row->shape, point->shape, point->dims);
    write_list(row->inputs, row->inputs_size, point->inputs, point->n_inputs);
    row->values[0] = invar_ledger_value_int((int64_t)ord);
    row->values[1] = invar_ledger_value_text(point->name);
    row->values[2] = invar_ledger_value_text(point->phase);
    row->values[3] =
        point->layer < 0 ? invar_ledger_value_null() : invar_ledger_value_int(point->layer);
    row->values[4] = invar_ledger_value_text(point->op);
    row->values[5] = invar_ledger_value_text(point->kind);
    row->values[6] = invar_ledger_value_int(point->level);
    row->values[7] = invar_ledger_value_text(point->dtype);
    row->values[8] = invar_ledger_value_text(row->shape);
    row->values[9] = invar_ledger_value_int(point->shards);
    row->values[10] = invar_ledger_value_int(point->replicated);
    row->values[11] = invar_ledger_value_text(row->inputs);
}

void invar_manifest_point_hash(invar_hasher *hasher, const invar_ledger_value *values)
{
    for (int i = 0; i < INVAR_MANIFEST_POINT_COLUMNS; i++)
        invar_ledger_value_hash(hasher, &values[i]);
}

/* ---- checks of the caller's points ----------------------------------------------------------- */

static invar_status check_point(const invar_ledger_point *point, size_t ord)
{
    INVAR_TRY(invar_ledger_validate_name("a point's name", point->name));
    INVAR_TRY(invar_ledger_validate_name("a point's phase", point->phase));
    INVAR_TRY(invar_ledger_validate_name("a point's op", point->op));
    INVAR_TRY(invar_ledger_validate_name("a point's kind", point->kind));
    INVAR_TRY(invar_ledger_validate_name("a point's dtype", point->dtype));
    if (point->layer < -1 || point->level < 0 || point->shards < 1)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "ledger: point \"%.80s\": layer %" PRId64 ", level %" PRId64 ", %" PRId64
                          " shards; at least -1, 0 and 1",
                          point->name, point->layer, point->level, point->shards);
    if (point->dims > DIMS)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "ledger: point \"%.80s\" has %zu dimensions, at most %d", point->name,
                          point->dims, DIMS);
    for (size_t i = 0; i < point->n_inputs; i++)
        if (point->inputs[i] < 0 || point->inputs[i] >= (int64_t)ord)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "ledger: point \"%.80s\" is computed from point %" PRId64
                              ", which does not come before it",
                              point->name, point->inputs[i]);
    if (point->n_inputs > ord)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "ledger: point \"%.80s\" has %zu inputs: some are named twice, since %zu "
                          "points come before it",
                          point->name, point->n_inputs, ord);
    return INVAR_OK;
}

static int by_name(const void *a, const void *b)
{
    const invar_ledger_point *x = a, *y = b;

    return strcmp(x->name, y->name);
}

static invar_status check_names(const invar_ledger_point *points, size_t count)
{
    const invar_ledger_point **order;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(order, count, "a manifest"));
    for (size_t i = 0; i < count; i++)
        order[i] = &points[i];
    status = invar_sort((const void **)order, count, by_name);
    for (size_t i = 1; i < count && status == INVAR_OK; i++)
        if (strcmp(order[i - 1]->name, order[i]->name) == 0)
            status = INVAR_FAIL(INVAR_E_INVALID, 0, "ledger: two points have the name \"%.120s\"",
                                order[i]->name);
    invar_free(order);
    return status;
}

/* ---- storing --------------------------------------------------------------------------------- */

invar_status invar_manifest_find(int64_t *out, invar_sql *sql, const invar_digest *hash)
{
    invar_sql_stmt *stmt;
    invar_status status =
        invar_sql_prepare(&stmt, sql, "SELECT manifest FROM manifest WHERE hash = ?1");

    if (status == INVAR_OK)
        status = invar_sql_bind(stmt, 1, invar_ledger_value_digest(hash));
    *out = invar_sql_next(&status, stmt) ? invar_sql_int(stmt, 0) : 0;
    return invar_sql_end(stmt, status);
}

invar_status invar_manifest_add(int64_t *out, invar_sql *sql, const invar_digest *hash,
                                int64_t points)
{
    invar_sql_stmt *stmt;
    invar_status status =
        INVAR_SQL_QUERY(&stmt, sql, "INSERT INTO manifest(points, hash) VALUES(?1, ?2)", points);

    if (status == INVAR_OK)
        status = invar_sql_bind(stmt, 2, invar_ledger_value_digest(hash));
    if (status == INVAR_OK)
        status = invar_sql_run(stmt);
    INVAR_TRY(invar_sql_end(stmt, status));
    return invar_manifest_find(out, sql, hash);
}

invar_status invar_manifest_point_insert(invar_sql_stmt **out, invar_sql *sql)
{
    return invar_sql_prepare(out, sql,
                             "INSERT INTO point(manifest, " INVAR_MANIFEST_POINT_NAMES ") "
                             "VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
}

invar_status invar_manifest_point_write(invar_sql_stmt *insert, int64_t manifest,
                                        const invar_ledger_value *values)
{
    invar_status status = invar_sql_bind(insert, 1, invar_ledger_value_int(manifest));

    for (int i = 0; i < INVAR_MANIFEST_POINT_COLUMNS && status == INVAR_OK; i++)
        status = invar_sql_bind(insert, i + 2, values[i]);
    return status == INVAR_OK ? invar_sql_run(insert) : status;
}

static invar_status store_manifest(invar_ledger *ledger, const invar_digest *hash,
                                   const invar_ledger_point *points, size_t count, point_row *row)
{
    invar_sql_stmt *insert = NULL;
    int64_t manifest;
    invar_status status;

    INVAR_TRY(invar_manifest_add(&manifest, ledger->sql, hash, (int64_t)count));
    status = invar_manifest_point_insert(&insert, ledger->sql);
    for (size_t i = 0; i < count && status == INVAR_OK; i++) {
        point_row_fill(row, &points[i], i);
        status = invar_manifest_point_write(insert, manifest, row->values);
    }
    invar_sql_free(insert);
    return status;
}

/* Stores the manifest in a transaction of its own, unless the ledger has it. */
static invar_status store_once(invar_ledger *ledger, const invar_digest *hash,
                               const invar_ledger_point *points, size_t count, point_row *row)
{
    invar_status status;
    int64_t manifest;

    INVAR_TRY(invar_manifest_find(&manifest, ledger->sql, hash));
    if (manifest != 0)
        return INVAR_OK;
    INVAR_TRY(invar_sql_exec(ledger->sql, "BEGIN IMMEDIATE"));
    status = store_manifest(ledger, hash, points, count, row);
    if (status == INVAR_OK)
        status = invar_sql_exec(ledger->sql, "COMMIT");
    return status == INVAR_OK ? status : invar_sql_roll_back(ledger->sql, status);
}

/*
 * Allocates a row with space for the longest list of inputs. A list longer than its point allows
 * needs no space, because check_point rejects it before it is written.
 */
static invar_status point_row_new(point_row **out, const invar_ledger_point *points, size_t count)
{
    size_t most = 0, size;

    for (size_t i = 0; i < count; i++)
        if (points[i].n_inputs > most && points[i].n_inputs <= i)
            most = points[i].n_inputs;
    size = most * NUMBER_BYTES + 3;
    INVAR_TRY(INVAR_ALLOC_SIZED(*out, 1, sizeof **out + size, "a point"));
    (*out)->inputs_size = size;
    return INVAR_OK;
}

static invar_status define_points(invar_ledger *ledger, const invar_ledger_point *points,
                                  size_t count, point_row *row, bool *rooted)
{
    invar_hasher hasher;
    invar_digest hash;

    invar_hasher_init(&hasher);
    for (size_t i = 0; i < count; i++) {
        INVAR_TRY(check_point(&points[i], i));
        point_row_fill(row, &points[i], i);
        invar_manifest_point_hash(&hasher, row->values);
        rooted[i] = points[i].level == 0;
    }
    invar_hasher_final(&hash, &hasher);
    INVAR_TRY(check_names(points, count));
    INVAR_TRY(store_once(ledger, &hash, points, count, row));
    invar_free(ledger->definition.rooted);
    ledger->definition = (invar_ledger_manifest){true, hash, count, rooted};
    return INVAR_OK;
}

invar_status invar_ledger_define(invar_ledger *ledger, const invar_ledger_point *points,
                                 size_t count)
{
    point_row *row = NULL;
    bool *rooted;
    invar_status status;

    if (ledger->position.run == 0 || ledger->position.finished)
        return INVAR_FAIL(INVAR_E_STATE, 0, "ledger: points belong to a run that has begun");
    INVAR_TRY(INVAR_ALLOC(rooted, count, "a manifest"));
    status = point_row_new(&row, points, count);
    if (status == INVAR_OK) {
        status = define_points(ledger, points, count, row, rooted);
        invar_free(row);
    }
    if (status != INVAR_OK)
        invar_free(rooted);
    return status;
}

void invar_ledger_step_root(invar_digest *out, const invar_digest *digests, const bool *rooted,
                            size_t points)
{
    invar_hasher hasher;

    invar_hasher_init(&hasher);
    for (size_t i = 0; i < points; i++)
        if (rooted[i])
            invar_hasher_update(&hasher, digests[i].bytes, sizeof digests[i].bytes);
    invar_hasher_final(out, &hasher);
}
