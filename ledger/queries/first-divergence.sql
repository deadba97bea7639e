-- first-divergence: Where do two runs stop being bit-identical, and did they see the same data?
-- params: :a run, :b run
-- needs: SELECT count(*) FROM step s JOIN step t USING(step) WHERE s.run = :a AND t.run = :b
-- or: the runs have no step in common
-- SPDX-License-Identifier: Apache-2.0
WITH pair AS (
  SELECT x.step, x.chain AS chain_a, y.chain AS chain_b, x.root <> y.root AS differs,
         CASE WHEN min(ltrim(x.batch, '0'), ltrim(y.batch, '0')) <> ''
              THEN x.batch = y.batch END AS same_batch, -- NULL: not recorded, zeros
         CASE WHEN min(ltrim(x.rng, '0'), ltrim(y.rng, '0')) <> '' THEN x.rng = y.rng END AS same_rng
  FROM timeline x JOIN timeline y ON y.step = x.step
  WHERE x.run = :a AND y.run = :b),
whole AS (
  SELECT count(*) AS compared_steps, coalesce(sum(differs), 0) AS differing_steps,
         min(CASE WHEN differs THEN step END) AS first_step
  FROM pair)
SELECT compared_steps, differing_steps, first_step, chain_a, chain_b, same_batch, same_rng
FROM whole LEFT JOIN pair ON step = first_step;
