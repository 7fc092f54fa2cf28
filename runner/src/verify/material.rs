//! What models are run on: texts and prompts as token ids, long enough to show what only shows late.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};

use crate::plan::{Op, Plan};

/// Tokens generated after each prompt.
pub const GREEDY_TOKENS: u32 = 64;
/// Fewer positions than this would miss what depends on them.
const POSITIONS: u32 = 1024;
/// Positions beyond a sliding window, so that what it hides is missed if it is not hidden.
const BEYOND_WINDOW: u32 = 64;
/// More tokens than one call takes.
const LONG: u32 = 320;

/// What is run, and how far it reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Material {
    /// Texts whose tokens are fed one after the other: 1,024 positions or more in all.
    pub texts: Vec<Vec<u32>>,
    /// The beginning of the first of them: more than a call takes, and beyond every sliding window where it can be.
    pub long: Vec<u32>,
    /// Prompts for [`GREEDY_TOKENS`] tokens more; the last is as long as the context lets it be, or as `long`.
    pub prompts: Vec<Vec<u32>>,
}

impl Material {
    /// How long a text must be to reach beyond every sliding window, if the model's context allows it.
    pub fn text_length(plan: &Plan, context: u32) -> u32 {
        POSITIONS.max(beyond_window(plan)).min(context)
    }

    /// Cuts `tokens` into texts, each begun with `beginning` as the model expects it. `prompts` are fed as they are.
    pub fn new(
        plan: &Plan,
        context: u32,
        tokens: &[u32],
        beginning: &[u32],
        mut prompts: Vec<Vec<u32>>,
    ) -> Self {
        let length = Self::text_length(plan, context) as usize;
        let texts = windows(tokens, beginning, length, (POSITIONS as usize).div_ceil(length));
        let mut long = texts.first().cloned().unwrap_or_default();
        long.truncate(LONG.max(beyond_window(plan)) as usize);
        let longest = (context.saturating_sub(GREEDY_TOKENS).max(1)) as usize;
        prompts.push(long.clone());
        for prompt in &mut prompts {
            prompt.truncate(longest);
        }
        prompts.retain(|prompt| !prompt.is_empty());
        Self { texts, long, prompts }
    }

    /// The longest sliding window, and whether [`Material::long`] reaches beyond it; `None` where every token sees all.
    pub fn beyond_window(&self, plan: &Plan) -> Option<(u32, bool)> {
        longest_window(plan).map(|window| (window, self.long.len() > window as usize))
    }
}

/// Token ids where there is no tokenizer to make them: without sense, but the same everywhere.
pub fn noise(vocab: u32, count: usize, seed: u64) -> Vec<u32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| random.next_u32() % vocab.max(1)).collect()
}

/// At most `count` windows of `length` tokens, `beginning` included. Only whole ones: the first tokens of a short rest,
/// which see little, would weigh as much as any other. If there is no whole window, all there is is one.
pub fn windows(tokens: &[u32], beginning: &[u32], length: usize, count: usize) -> Vec<Vec<u32>> {
    let room = length.saturating_sub(beginning.len()).max(1);
    let whole = (tokens.len() / room).max(1);
    let windows = tokens.chunks(room).take(whole.min(count));
    windows.map(|window| [beginning, window].concat()).collect()
}

fn beyond_window(plan: &Plan) -> u32 {
    longest_window(plan).map_or(0, |window| window.saturating_add(BEYOND_WINDOW))
}

fn longest_window(plan: &Plan) -> Option<u32> {
    let windows = plan.steps.iter().filter_map(|step| match step.op {
        Op::Attend { window, .. } => window,
        _ => None,
    });
    windows.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_whole_and_begin_as_the_model_expects() {
        let tokens: Vec<u32> = (0..100).collect();
        let cut = windows(&tokens, &[7], 21, 9);
        assert_eq!(cut.len(), 5);
        assert_eq!(windows(&tokens, &[7], 21, 2).len(), 2);
        assert!(cut.iter().all(|window| window.len() == 21 && window[0] == 7));
        assert_eq!(cut[1][1..], tokens[20..40]);
        assert_eq!(windows(&tokens, &[], 30, 9).len(), 3, "a rest of ten is left out");
        assert_eq!(windows(&tokens[..4], &[], 30, 9), [tokens[..4].to_vec()]);
        assert_eq!(windows(&[], &[], 30, 9), Vec::<Vec<u32>>::new());
    }

    #[test]
    fn noise_is_the_same_everywhere() {
        assert_eq!(noise(300, 4, 1), noise(300, 4, 1));
        assert_ne!(noise(300, 4, 1), noise(300, 4, 2));
        assert!(noise(3, 1000, 0).iter().all(|&token| token < 3));
    }
}
