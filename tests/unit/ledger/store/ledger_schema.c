/*
 * ledger_schema.c - tests of the recorded hashes of schemas: each version has its own.
 *
 * Without a hash, ledgers of a version are checked as well but slowly, so only these tests notice a
 * missing or wrong one. Control: an added object changes the hash.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/store/ledger_schema.h"

#include "ledger/ledger.h"
#include "tests/support.h"

static void test_ledger_schema__known(void **state)
{
    bool known;

    (void)state;
    for (int version = 1; version <= INVAR_LEDGER_VERSION; version++) {
        invar_sql *sql;

        assert_ok(invar_sql_open(&sql, "", INVAR_SQL_MODE_CREATE));
        assert_ok(invar_ledger_schema_migrate(sql, version));
        for (int of = 1; of <= INVAR_LEDGER_VERSION; of++) {
            assert_ok(invar_ledger_schema_known(&known, sql, of));
            assert_int_equal(known, of == version);
        }
        assert_ok(invar_sql_exec(sql, "CREATE VIEW aa AS SELECT 1"));
        assert_ok(invar_ledger_schema_known(&known, sql, version));
        assert_false(known);
        invar_sql_close(sql);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(test_ledger_schema__known)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
