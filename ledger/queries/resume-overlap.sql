-- resume-overlap: Did the steps that a resume executed again reproduce bit for bit?
-- params: :run run
-- needs: SELECT count(*) > 1 FROM segment WHERE run = :run
-- or: the run has one segment: it was never resumed
-- SPDX-License-Identifier: Apache-2.0
WITH repeated AS (
  SELECT a.step, a.seg AS seg_old, b.seg AS seg_new, a.root <> b.root AS differs,
         a.content <> b.content AS content_differs
  FROM step b
  JOIN step a ON a.run = b.run AND a.step = b.step AND a.seg =
    (SELECT max(c.seg) FROM step c WHERE c.run = b.run AND c.step = b.step AND c.seg < b.seg)
  WHERE b.run = :run),
pair AS (
  SELECT seg_old, seg_new, min(step) AS from_step, max(step) AS to_step, count(*) AS steps,
         sum(differs) AS differing, min(CASE WHEN differs THEN step END) AS first_step,
         min(CASE WHEN content_differs THEN step END) AS first_content_step
  FROM repeated GROUP BY seg_old, seg_new)
SELECT seg_old, seg_new, from_step, to_step, steps, differing, first_step,
       (SELECT x.name FROM digests x JOIN digests y ON y.name = x.name AND y.hash <> x.hash
        WHERE x.run = :run AND x.step = first_step AND x.seg = seg_old AND x.rank = 0
          AND y.run = :run AND y.step = first_step AND y.seg = seg_new AND y.rank = 0
        ORDER BY x.ord LIMIT 1) AS first_point, first_content_step
FROM pair ORDER BY seg_old, seg_new;
