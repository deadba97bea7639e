-- triage-slow-phase: Did a phase that counts become much slower than it was?
-- params: :run run, :factor number = 4, :window integer = 10, :seconds number = 1
-- means: the machine is shared, hot or swaps, responses grow, or a judge does not answer
-- next: ledger query slow-steps --run RUN
-- needs: SELECT count(DISTINCT step) > 9 FROM timing WHERE run = :run
-- or: times of phases of 10 steps
-- SPDX-License-Identifier: Apache-2.0
WITH part AS (
  SELECT phase, sum(duration_ns) * 1.0 / sum(sum(duration_ns)) OVER () AS share
  FROM timing WHERE run = :run GROUP BY phase),
ranked AS (
  SELECT t.phase, t.duration_ns, row_number() OVER (PARTITION BY t.phase ORDER BY t.duration_ns)
         AS place, count(*) OVER (PARTITION BY t.phase) AS steps
  FROM timing t WHERE t.run = :run),
usual AS (SELECT phase, duration_ns FROM ranked WHERE place = (steps + 3) / 4), -- a quarter's end
smooth AS (
  SELECT t.step, t.phase, min(t.duration_ns) OVER here AS least, count(*) OVER here AS known
  FROM timing t WHERE t.run = :run
  WINDOW here AS (PARTITION BY t.phase ORDER BY t.step
                  ROWS BETWEEN :window - 1 PRECEDING AND CURRENT ROW))
SELECT s.step, printf('for %d steps %s took at least %.3g s; usual is %.3g s', :window, s.phase,
                      s.least / 1e9, u.duration_ns / 1e9) AS evidence
FROM smooth s JOIN usual u USING(phase) JOIN part p USING(phase)
WHERE s.known = :window AND p.share > 0.1 AND s.least > :factor * u.duration_ns
  AND s.least > :seconds * 1e9 -- below that, steps are so short that others make the noise
ORDER BY s.step, s.phase;
