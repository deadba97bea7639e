/*
 * base_alloc.c - allocations of base/ fail one at a time.
 *
 * A scenario takes an object from its creation to its release. It runs with the first allocation
 * failing, then with the second, and so on until none fails. Each run must end with INVAR_E_NOMEM
 * and a message, or with success, and every block must have been freed (faulty.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/console/progress.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/pool.h"
#include "base/recipe/flatten.h"
#include "base/recipe/recipe.h"
#include "tests/fault/faulty.h"

/* ---- arena ----------------------------------------------------------------------------------- */

static invar_status use_arena(invar_arena *arena)
{
    void *block;

    INVAR_TRY(invar_arena_plan_scratch(arena, 40 * INVAR_ALIGN));
    INVAR_TRY(invar_arena_reserve(arena));
    for (int i = 0; i < 40; i++)
        INVAR_TRY(invar_arena_push(&block, arena, 100, "scratch"));
    INVAR_TRY(invar_arena_rewind(arena, 20 * INVAR_ALIGN));
    return INVAR_OK;
}

static invar_status exercise_arena(void)
{
    invar_arena *arena;
    invar_status status;

    INVAR_TRY(invar_arena_new(&arena, "host"));
    status = use_arena(arena);
    invar_arena_free(arena);
    return status;
}

static invar_status exercise_arena_debug(void)
{
    invar_arena *arena;
    invar_status status;

    INVAR_TRY(invar_arena_new_debug(&arena, "host"));
    status = use_arena(arena);
    invar_arena_free(arena);
    return status;
}

static void test_base_alloc__arena_survives_each_failure(void **state)
{
    (void)state;
    fail_each_allocation(exercise_arena);
    fail_each_allocation(exercise_arena_debug);
}

/* A reservation that failed once may succeed later, because the plan is unchanged. */
static void test_base_alloc__arena_reserve_may_be_repeated(void **state)
{
    faulty f = {.fail_at = 0};
    invar_allocator allocator = {faulty_alloc, faulty_free, &f};
    invar_arena *arena;
    void *block;

    (void)state;
    invar_allocator_set(&allocator);
    assert_ok(invar_arena_new(&arena, "host"));
    assert_ok(invar_arena_plan_scratch(arena, 100));
    f.fail_at = f.calls + 1;
    assert_int_equal(invar_arena_reserve(arena), INVAR_E_NOMEM);
    assert_ok(invar_arena_reserve(arena));
    assert_ok(invar_arena_push(&block, arena, 100, "scratch"));
    invar_arena_free(arena);
    assert_int_equal(f.live, 0);
    invar_allocator_set(NULL);
}

/* ---- pool and hash --------------------------------------------------------------------------- */

static invar_status do_nothing(void *payload, int64_t task, int worker)
{
    (void)payload;
    (void)task;
    (void)worker;
    return INVAR_OK;
}

static invar_status exercise_pool(void)
{
    invar_pool *pool;
    invar_status status;

    INVAR_TRY(invar_pool_new(&pool, 4));
    status = invar_pool_run(pool, 100, do_nothing, NULL);
    invar_pool_free(pool);
    return status;
}

static void test_base_alloc__pool_survives_each_failure(void **state)
{
    (void)state;
    fail_each_allocation(exercise_pool);
}

static invar_status exercise_hash(void)
{
    static const char data[50000];
    invar_tree_shard shards[2] = {{data, 1, sizeof data, sizeof data}, {data, 10, 100, 200}};
    invar_tree_input in = {shards, 2};
    invar_digest root, leaves[5];
    int64_t count;

    INVAR_TRY(invar_tree_hash(&root, NULL, &in));
    INVAR_TRY(invar_tree_leaf_count(&count, &in));
    return invar_tree_leaves(leaves, count, NULL, &in);
}

static void test_base_alloc__tree_hash_survives_each_failure(void **state)
{
    (void)state;
    fail_each_allocation(exercise_hash);
}

/* ---- recipe ---------------------------------------------------------------------------------- */

static const invar_recipe_key keys[] = {
    {.section = "a",
     .name = "text",
     .type = INVAR_RECIPE_TYPE_STRING,
     .default_text = "x",
     .doc = "d"},
    {.section = "a", .name = "int", .type = INVAR_RECIPE_TYPE_INT, .default_text = "1", .doc = "d"},
    {.section = "b",
     .name = "float",
     .type = INVAR_RECIPE_TYPE_FLOAT,
     .default_text = "1",
     .doc = "d"},
};
static const invar_recipe_schema schema = {.keys = keys, .count = 3};

static char path[] = INVAR_TEST_WORK "/fault-XXXXXX";
static const char including_path[] = INVAR_TEST_WORK "/fault-including";

static invar_status use_recipe(invar_recipe *recipe)
{
    invar_digest digest;
    int64_t length;
    char *text;
    size_t bytes;

    INVAR_TRY(invar_file_hash(&digest, &length, path));
    INVAR_TRY(invar_recipe_flatten(&text, &bytes, including_path));
    invar_free(text);
    INVAR_TRY(invar_recipe_read_with_includes(recipe, including_path));
    INVAR_TRY(invar_recipe_set(recipe, "int", "3", "--int"));
    INVAR_TRY(invar_recipe_set(recipe, "float", "0.5", "--float"));
    return invar_recipe_check(recipe);
}

static invar_status exercise_recipe(void)
{
    invar_recipe *recipe;
    invar_status status;

    INVAR_TRY(invar_recipe_new(&recipe, &schema));
    status = use_recipe(recipe);
    invar_recipe_free(recipe);
    return status;
}

static void test_base_alloc__recipe_survives_each_failure(void **state)
{
    FILE *stream = fdopen(mkstemp(path), "w");

    (void)state;
    assert_non_null(stream);
    fputs("[a]\ntext = long enough\nint = 2\n[b]\nfloat = 1e-6\n", stream);
    assert_int_equal(fclose(stream), 0);
    stream = fopen(including_path, "w");
    assert_non_null(stream);
    fprintf(stream, "include = %s\n[a]\nint = 4\n", path);
    assert_int_equal(fclose(stream), 0);
    fail_each_allocation(exercise_recipe);
    assert_int_equal(unlink(path) | unlink(including_path), 0);
}

/* ---- progress -------------------------------------------------------------------------------- */

static invar_status exercise_progress(void)
{
    invar_progress *progress;
    invar_progress_options options = {
        .stream = stderr, .title = "title", .mode = INVAR_PROGRESS_MODE_SILENT};

    INVAR_TRY(invar_progress_new(&progress, &options));
    invar_progress_update(progress, 1, "message");
    invar_progress_free(progress);
    return INVAR_OK;
}

static void test_base_alloc__progress_survives_each_failure(void **state)
{
    (void)state;
    fail_each_allocation(exercise_progress);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_alloc__arena_survives_each_failure),
        cmocka_unit_test(test_base_alloc__arena_reserve_may_be_repeated),
        cmocka_unit_test(test_base_alloc__pool_survives_each_failure),
        cmocka_unit_test(test_base_alloc__tree_hash_survives_each_failure),
        cmocka_unit_test(test_base_alloc__recipe_survives_each_failure),
        cmocka_unit_test(test_base_alloc__progress_survives_each_failure),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
