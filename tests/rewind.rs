//! An engine that keeps the beginning of a text answers as one that reads it afresh.

use packlight_runner::bundle::{Bundle, Trust};
use packlight_runner::engine::{Device, Engine};
use packlight_runner::executor::{Output, Want};
use packlight_runner::source::Folder;

use crate::support::{converted, fixture, gpu};

/// `length` tokens, of which the first `same` are those of every other text.
fn text(same: u32, length: u32, other: u32) -> Vec<u32> {
    (0..length).map(|i| (i * 37 + if i < same { 0 } else { other }) % 320).collect()
}

/// What the engine answers after a text, and how much of it was not read again.
async fn read(engine: &mut Engine, text: &[u32]) -> (Vec<f32>, usize) {
    let kept = engine.keep(text);
    let output = engine.feed(&text[kept..], Want::LastLogits).await.unwrap();
    assert_eq!(engine.position() as usize, text.len());
    let Output::Logits(logits) = output else { panic!("no logits") };
    (logits, kept)
}

#[test]
fn keeping_a_beginning_changes_nothing() {
    // Windows of 16 (Mistral, Gemma 4), rotary tables that change behind 64 tokens (Phi-3), and neither.
    for name in ["llama", "mistral", "gemma4", "phi3"] {
        let (_folder, bundle) = converted(&fixture(name));
        for device in [Some(Device::Cpu), gpu().then_some(Device::Gpu)].into_iter().flatten() {
            pollster::block_on(async {
                let bundle = Bundle::open(Folder::new(&bundle), Trust::Nothing).await.unwrap();
                let mut engine = Engine::load(&bundle, device, None, 500, |_| ()).await.unwrap();
                let mut fresh = Engine::load(&bundle, device, None, 500, |_| ()).await.unwrap();
                // Longer, shorter by a little and by a lot, past Phi-3's 64 and back; then more than a cache of a
                // window of 16 and a call of 256 holds, of which little or much is taken back.
                let texts =
                    [(0, 40, 1), (40, 60, 0), (55, 58, 2), (8, 90, 3), (80, 85, 3), (80, 70, 0)];
                let long = [(60, 400, 1), (395, 399, 2), (390, 420, 3), (120, 130, 4), (0, 5, 9)];
                let texts = texts
                    .into_iter()
                    .chain(long)
                    .map(|(same, length, other)| text(same, length, other));
                for text in texts {
                    let (found, kept) = read(&mut engine, &text).await;
                    assert!(kept < text.len());
                    fresh.reset();
                    let (expected, _) = read(&mut fresh, &text).await;
                    let largest = expected.iter().fold(0f32, |max, x| max.max(x.abs()));
                    let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 * largest;
                    let length = text.len();
                    assert!(
                        found.iter().zip(&expected).all(close),
                        "{name} on {device:?}: {length} tokens of which {kept} were kept"
                    );
                }
            });
        }
    }
}

#[test]
fn what_is_the_same_is_not_read_again() {
    let (_folder, bundle) = converted(&fixture("llama"));
    pollster::block_on(async {
        let bundle = Bundle::open(Folder::new(&bundle), Trust::Nothing).await.unwrap();
        let mut engine = Engine::load(&bundle, Device::Cpu, None, 96, |_| ()).await.unwrap();
        let mut kept = async |text: &[u32]| read(&mut engine, text).await.1;
        assert_eq!(kept(&text(40, 40, 0)).await, 0);
        assert_eq!(kept(&text(40, 50, 5)).await, 40);
        assert_eq!(kept(&text(20, 50, 7)).await, 20);
        // The last token is always read: its logits are wanted.
        assert_eq!(kept(&text(20, 50, 7)).await, 49);
        assert_eq!(kept(&text(20, 30, 7)).await, 29);
    });
}
