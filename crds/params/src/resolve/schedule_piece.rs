//! Resolves the curve of one schedule: its keys become one [`ScheduleSegmentKind`].

use super::check::ResolveContext;
use super::schedule::{kind, sequence};
use crate::document::ScheduleParams;
use crate::job::{AnnealStrategy, CycleAmplitude, ScheduleSegmentKind as Piece};
use crate::keywords::{ANNEAL_STRATEGIES, CYCLE_MODES, CycleMode, ScheduleKind};
use crate::yaml::ParamsSection;

/// Maximum number of milestones. A job with as many rates, and its record, fit into an object of Kubernetes.
const MAX_MILESTONES: usize = 16_384;
/// Maximum number of schedules that are multiplied: evaluating them takes time for each.
const MAX_CHAINED_SCHEDULES: usize = 4096;
/// Maximum exponent of a step or of a share.
const MAX_EXPONENT: f64 = 64.0;
/// Maximum number of steps of a period, so that sums of two can't overflow.
const MAX_PERIOD_STEPS: usize = 1 << 53;

/// The two lengths of a schedule.
#[derive(Clone, Copy)]
pub(super) struct Lengths {
    /// Number of steps from the first rate to the last.
    pub of_curve: Option<u64>,
    /// Number of steps until the next schedule of a list begins.
    pub in_list: Option<u64>,
}

impl Lengths {
    /// Returns the lengths that are given. Older files give that of the curve (`decay_steps`) separately from that in
    /// the list (`steps`).
    pub(super) fn of(p: &ScheduleParams) -> Self {
        Self {
            of_curve: p.total_iters.or(p.decay_steps).or(p.steps),
            in_list: p.steps.or(p.total_iters).or(p.decay_steps),
        }
    }
}

/// Reads the keys of one schedule.
struct PieceReader<'a, 'b> {
    check: &'a mut ResolveContext<'b>,
    path: &'a str,
    p: &'a ScheduleParams,
    kind: ScheduleKind,
    lengths: Lengths,
}

pub(super) fn piece(
    check: &mut ResolveContext<'_>,
    path: &str,
    p: &ScheduleParams,
    kind: ScheduleKind,
    lengths: Lengths,
) -> Piece {
    if p.cycle == Some(true) {
        check.note(format!("{path}.cycle has no effect, as in the model zoo: the last rate of the schedule holds"));
    }
    PieceReader { check, path, p, kind, lengths }.piece()
}

impl PieceReader<'_, '_> {
    fn piece(mut self) -> Piece {
        let p = self.p;
        match self.kind {
            ScheduleKind::Constant => self.constant(),
            ScheduleKind::Linear => self.decay_to_end(),
            ScheduleKind::Polynomial => self.decay_to_end(),
            ScheduleKind::CosineDecay => self.decay_to_end(),
            ScheduleKind::Exponential => Piece::Exponential {
                initial: self.initial(),
                decay_rate: self.factor("decay_rate", p.decay_rate),
                total_iters: self.total_iters(),
                staircase: p.staircase.unwrap_or(false),
            },
            ScheduleKind::InverseExponentialTimeDecay => Piece::InverseExponentialTimeDecay {
                initial: self.initial(),
                decay_rate: self.factor("decay_rate", p.decay_rate),
                total_iters: self.total_iters(),
                step_exponent: self.exponent("step_exponent", p.step_exponent),
                staircase: p.staircase.unwrap_or(false),
            },
            ScheduleKind::InverseSquareRootDecay => Piece::InverseSquareRootDecay {
                initial: self.rate("initial_learning_rate", p.initial_learning_rate, 1.0),
                scale: self.rate("scale", p.scale, 1.0),
                warmup_steps: p.warmup_steps.unwrap_or(1).max(1),
            },
            ScheduleKind::PiecewiseConstant => self.piecewise_constant(),
            ScheduleKind::Step => Piece::Step {
                initial: self.initial(),
                gamma: self.factor("gamma", p.gamma),
                step_size: self.steps("step_size", p.step_size, None),
            },
            ScheduleKind::MultiStep => Piece::MultiStep {
                initial: self.initial(),
                gamma: self.factor("gamma", p.gamma),
                milestones: self.milestones(),
            },
            ScheduleKind::Multiplicative => Piece::Multiplicative {
                initial: self.initial(),
                coefficient: self.factor("coefficient", p.coefficient),
            },
            ScheduleKind::CosineAnnealing => Piece::CosineAnnealing {
                initial: self.initial(),
                end: self.rate("eta_min", p.eta_min, 0.0),
                period_steps: self.steps("T_max", p.T_max, None),
            },
            ScheduleKind::CosineAnnealingWarmRestarts => Piece::CosineAnnealingWarmRestarts {
                initial: self.initial(),
                end: self.rate("eta_min", p.eta_min, 0.0),
                period_steps: self.steps("T_0", p.T_0, None),
                period_factor: self.steps("T_mult", p.T_mult, Some(1)),
            },
            ScheduleKind::Cyclic => self.cyclic(),
            ScheduleKind::OneCycle => self.one_cycle(),
            ScheduleKind::Sequential => self.sequential(),
            ScheduleKind::Chained => self.chained(),
        }
    }

    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.path)
    }

    fn rate(&mut self, key: &str, value: Option<f64>, default: f64) -> f64 {
        self.check.non_negative(&self.key(key), value, default)
    }

    fn required<T>(&mut self, key: &str, value: Option<T>) {
        if value.is_none() {
            let name = self.p.scheduler.as_deref().unwrap_or_default();
            self.check.report_missing(&self.key(key), format!("{name} needs it"));
        }
    }

    fn initial(&mut self) -> f64 {
        if self.p.initial_learning_rate.is_none() {
            self.check.report_missing(&self.key("initial_learning_rate"), "give the rate the schedule begins with");
        }
        self.rate("initial_learning_rate", self.p.initial_learning_rate, 0.0)
    }

    /// Reads a factor, which must be given.
    fn factor(&mut self, key: &str, value: Option<f64>) -> f64 {
        self.required(key, value);
        self.rate(key, value, 1.0)
    }

    fn exponent(&mut self, key: &str, value: Option<f64>) -> f64 {
        let exponent = self.check.positive(&self.key(key), value, 1.0);
        if exponent > MAX_EXPONENT {
            let message = format!("is {exponent}, which is out of range");
            self.check.report_invalid(&self.key(key), message, format!("give a number of at most {MAX_EXPONENT}"));
        }
        exponent
    }

    fn steps(&mut self, key: &str, value: Option<u64>, default: Option<usize>) -> u64 {
        if default.is_none() {
            self.required(key, value);
        }
        self.check.count(&self.key(key), value, default.unwrap_or(1), MAX_PERIOD_STEPS) as u64
    }

    fn total_iters(&mut self) -> u64 {
        if self.lengths.of_curve.is_none() {
            self.check.report_missing(&self.key("total_iters"), "give the number of steps of the schedule");
        }
        self.lengths.of_curve.unwrap_or(1).max(1)
    }

    fn constant(&mut self) -> Piece {
        let (key, older) = (self.key("learning_rate"), self.key("val"));
        let rate = self.check.either_spelling(&key, self.p.learning_rate, &older, self.p.val);
        if rate.is_none() {
            self.check.report_missing(&key, "give the rate of the constant schedule");
        }
        Piece::Constant { learning_rate: self.check.non_negative(&key, rate, 0.0) }
    }

    /// Resolves the schedules that end at `end_learning_rate`.
    fn decay_to_end(&mut self) -> Piece {
        let initial = self.initial();
        let total_iters = self.total_iters();
        let mut end = self.rate("end_learning_rate", self.p.end_learning_rate, 0.0);
        let floor = initial * self.rate("alpha", self.p.alpha, 0.0);
        if floor > end {
            self.check.note(format!("{} ends at {floor:e}, alpha times its initial rate", self.path));
            end = floor;
        }
        if self.kind == ScheduleKind::CosineDecay {
            return Piece::CosineDecay { initial, end, total_iters };
        }
        let power = self.exponent("power", self.p.power);
        if power == 1.0 {
            return Piece::Linear { initial, end, total_iters };
        }
        if self.kind == ScheduleKind::Linear {
            self.check.report_invalid(&self.key("power"), format!("is {power} in Linear"), "use Polynomial");
        }
        Piece::Polynomial { initial, end, total_iters, power }
    }

    fn milestones(&mut self) -> Vec<u64> {
        self.required("milestones", self.p.milestones.as_ref());
        let milestones = self.p.milestones.clone().unwrap_or_default();
        if milestones.len() > MAX_MILESTONES {
            let message = format!("has {} numbers", milestones.len());
            self.check.report_invalid(&self.key("milestones"), message, format!("give at most {MAX_MILESTONES}"));
            return Vec::new();
        }
        if milestones.first() == Some(&0) || !milestones.is_sorted_by(|before, after| before < after) {
            let hint = "give each step once, from the first to the last, without 0";
            self.check.report_invalid(&self.key("milestones"), "are not ascending", hint);
        }
        milestones
    }

    fn piecewise_constant(&mut self) -> Piece {
        let milestones = self.milestones();
        self.required("learning_rates", self.p.learning_rates.as_ref());
        let rates = self.p.learning_rates.clone().unwrap_or_default();
        if !rates.is_empty() && rates.len() != milestones.len() + 1 {
            let message = format!("has {} rates for {} milestones", rates.len(), milestones.len());
            self.check.report_invalid(&self.key("learning_rates"), message, "give one rate more than milestones");
        }
        let numbered = rates.into_iter().enumerate();
        let rates = numbered.map(|(i, rate)| self.rate(&format!("learning_rates.{i}"), Some(rate), 0.0)).collect();
        Piece::PiecewiseConstant { milestones, rates }
    }

    fn cyclic(&mut self) -> Piece {
        let p = self.p;
        self.required("base_lr", p.base_lr);
        self.required("max_lr", p.max_lr);
        let up = self.steps("step_size_up", p.step_size_up, Some(2000));
        let mode = self.check.keyword(&self.key("mode"), p.mode.as_deref(), CycleMode::Triangular, &CYCLE_MODES);
        let gamma = self.rate("gamma", p.gamma, 1.0);
        Piece::Cyclic {
            base: self.rate("base_lr", p.base_lr, 0.0),
            max: self.rate("max_lr", p.max_lr, 0.0),
            steps_up: up,
            steps_down: self.steps("step_size_down", p.step_size_down, Some(up as usize)),
            amplitude: match mode {
                CycleMode::Triangular => CycleAmplitude::Constant {},
                CycleMode::Triangular2 => CycleAmplitude::Halved {},
                CycleMode::ExpRange => CycleAmplitude::Exponential { gamma },
            },
        }
    }

    fn one_cycle(&mut self) -> Piece {
        let p = self.p;
        let initial = self.initial();
        self.required("max_lr", p.max_lr);
        let divisor = self.check.positive(&self.key("final_div_factor"), p.final_div_factor, 1e4);
        let total_steps = self.steps("total_steps", p.total_steps, Some(1000));
        let pct_start = self.check.probability(&self.key("pct_start"), p.pct_start, 0.3);
        let three_phase = p.three_phase.unwrap_or(false);
        // The rise and each fall last at least one step.
        let (rise, phases) = (pct_start * total_steps as f64, if three_phase { 2.0 } else { 1.0 });
        if rise < 2.0 || phases * (rise - 1.0) > total_steps as f64 - 2.0 {
            let message = format!("{pct_start} of {total_steps} steps leaves no step for a rise or a fall");
            self.check.report_invalid(
                &self.key("pct_start"),
                message,
                "raise total_steps, or choose a share such as 0.3",
            );
        }
        let key = self.key("anneal_strategy");
        let strategy = p.anneal_strategy.as_deref();
        Piece::OneCycle {
            initial,
            max: self.rate("max_lr", p.max_lr, 0.0),
            end: initial / divisor,
            total_steps,
            pct_start,
            three_phase,
            strategy: self.check.keyword(&key, strategy, AnnealStrategy::Cosine, &ANNEAL_STRATEGIES),
        }
    }

    fn sequential(&mut self) -> Piece {
        self.required("schedulers", self.p.schedulers.as_ref());
        let Some(schedulers) = self.p.schedulers.as_ref().map(|nested| nested.0.as_slice()) else {
            return Piece::Constant { learning_rate: 0.0 };
        };
        let milestones = self.p.milestones.is_some().then(|| self.milestones());
        if let Some(milestones) = &milestones
            && milestones.len() + 1 != schedulers.len()
        {
            let message = format!("has {} numbers for {} schedulers", milestones.len(), schedulers.len());
            self.check.report_invalid(&self.key("milestones"), message, "give one number less than schedulers");
        }
        let path = self.key("schedulers");
        Piece::Sequential { segments: sequence(self.check, &path, schedulers, milestones.as_deref(), false) }
    }

    fn chained(&mut self) -> Piece {
        self.required("schedulers", self.p.schedulers.as_ref());
        let schedulers = self.p.schedulers.as_ref().map_or(&[][..], |nested| nested.0.as_slice());
        let path = self.key("schedulers");
        if self.p.schedulers.is_some() && schedulers.is_empty() {
            self.check.report_invalid(&path, "is an empty list", "give at least one schedule");
        }
        if schedulers.len() > MAX_CHAINED_SCHEDULES {
            let hint = format!("give at most {MAX_CHAINED_SCHEDULES}");
            self.check.report_invalid(&path, "has too many schedules", hint);
            return Piece::Chained { pieces: Vec::new() };
        }
        let mut pieces = Vec::new();
        for (i, p) in schedulers.iter().enumerate() {
            let path = format!("{path}.{i}");
            let Some(kind) = kind(self.check, &format!("{path}.scheduler"), p) else { continue };
            refuse_foreign_keys(self.check, &path, p, kind);
            let piece = piece(self.check, &path, p, kind, Lengths::of(p));
            if i > 0 && piece.initial().is_none_or(|initial| initial <= 0.0) {
                let hint = "only the first schedule of Chained may begin at 0 or be Cyclic, Sequential or Chained";
                self.check.report_invalid(&path, "has no initial rate to which its rates could be related", hint);
            }
            pieces.push(piece);
        }
        Piece::Chained { pieces }
    }
}

/// Returns the keys that a schedule reads besides its name and its length in a list.
const fn used_keys(kind: ScheduleKind) -> &'static [&'static str] {
    match kind {
        ScheduleKind::Constant => &["learning_rate", "val"],
        ScheduleKind::Linear | ScheduleKind::Polynomial => {
            &["initial_learning_rate", "end_learning_rate", "alpha", "power", "cycle"]
        }
        ScheduleKind::CosineDecay => &["initial_learning_rate", "end_learning_rate", "alpha"],
        ScheduleKind::Exponential => &["initial_learning_rate", "decay_rate", "staircase"],
        ScheduleKind::InverseExponentialTimeDecay => {
            &["initial_learning_rate", "decay_rate", "staircase", "step_exponent"]
        }
        ScheduleKind::InverseSquareRootDecay => &["initial_learning_rate", "scale", "warmup_steps"],
        ScheduleKind::PiecewiseConstant => &["milestones", "learning_rates"],
        ScheduleKind::Step => &["initial_learning_rate", "gamma", "step_size"],
        ScheduleKind::MultiStep => &["initial_learning_rate", "gamma", "milestones"],
        ScheduleKind::Multiplicative => &["initial_learning_rate", "coefficient"],
        ScheduleKind::CosineAnnealing => &["initial_learning_rate", "T_max", "eta_min"],
        ScheduleKind::CosineAnnealingWarmRestarts => &["initial_learning_rate", "T_0", "T_mult", "eta_min"],
        ScheduleKind::Cyclic => &["base_lr", "max_lr", "step_size_up", "step_size_down", "mode", "gamma", "scale_mode"],
        ScheduleKind::OneCycle => &[
            "initial_learning_rate",
            "max_lr",
            "total_steps",
            "pct_start",
            "final_div_factor",
            "three_phase",
            "anneal_strategy",
        ],
        ScheduleKind::Sequential => &["schedulers", "milestones"],
        ScheduleKind::Chained => &["schedulers"],
    }
}

/// Rejects keys that the schedule does not have: either the key or the schedule is a mistake.
pub(super) fn refuse_foreign_keys(check: &mut ResolveContext<'_>, path: &str, p: &ScheduleParams, kind: ScheduleKind) {
    let used = used_keys(kind);
    let common = ["scheduler", "total_iters", "steps", "decay_steps"];
    for key in p.given_keys().into_iter().filter(|key| !used.contains(key) && !common.contains(key)) {
        let name = p.scheduler.as_deref().unwrap_or_default();
        check.report_invalid(&format!("{path}.{key}"), format!("has no meaning for {name}"), "leave it out");
    }
}
