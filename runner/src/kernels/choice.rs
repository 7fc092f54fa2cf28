//! Which kernel of an operation a device gets, and why not a better one.

use super::{KERNELS, Kernel, KernelOp};
use crate::gpu::{Caps, Feature, SubgroupSizes};

/// The fewest threads of a workgroup that kernels work with: they keep fixed shares of a tile or head in registers.
const FEWEST_THREADS: u32 = 64;
/// Subgroup kernels are for devices that can run so many threads in a workgroup, as TVM has it.
const SUBGROUP_INVOCATIONS: u32 = 1024;
/// The size of a subgroup that subgroup kernels are made for; they are correct with any.
const SUBGROUP_SIZE: u32 = 32;

/// What a kernel needs that not every device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    F16,
    Subgroups,
    CooperativeMatrices,
    Software,
}

/// Why a device does not get a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("f16 is not asked for (--caps +f16)")]
    F16Off,
    #[error("the adapter has no f16")]
    NoF16,
    #[error("subgroups are not asked for (--caps +subgroups)")]
    SubgroupsOff,
    #[error("the adapter has no subgroups")]
    NoSubgroups,
    #[error("cooperative matrices are not asked for (--caps +coop)")]
    CooperativeOff,
    #[error(
        "the adapter has no cooperative matrices of 16 x 16 f16 with sums in f32 for subgroups of 32"
    )]
    NoCooperative,
    #[error("it is for threads that are known to run on a processor's cores")]
    NotSoftware,
    #[error("the adapter's subgroup sizes, {min}..={max}, do not include 32")]
    SubgroupSizes { min: u32, max: u32 },
    #[error("subgroups need 1024 threads in a workgroup, but the device allows {invocations}")]
    SubgroupInvocations { invocations: u32 },
    #[error("a workgroup needs {needed} bytes of memory, but the device allows {limit}")]
    WorkgroupBytes { needed: u32, limit: u32 },
    #[error("a workgroup needs 64 threads, but the device allows {limit}")]
    Invocations { limit: u32 },
    #[error("it binds {needed} storage buffers, but the device allows {limit}")]
    StorageBuffers { needed: usize, limit: u32 },
}

impl Refusal {
    /// Whether the kernel was never asked for, or is for other devices.
    pub fn is_no_news(self) -> bool {
        matches!(self, Self::F16Off | Self::SubgroupsOff | Self::CooperativeOff | Self::NotSoftware)
    }
}

impl Need {
    fn met(self, caps: &Caps) -> Result<(), Refusal> {
        match self {
            Self::F16 => match caps.f16 {
                Feature::Off => Err(Refusal::F16Off),
                Feature::Missing => Err(Refusal::NoF16),
                Feature::On(()) => Ok(()),
            },
            Self::CooperativeMatrices => match caps.cooperative {
                Feature::Off => Err(Refusal::CooperativeOff),
                Feature::Missing => Err(Refusal::NoCooperative),
                Feature::On(()) => Ok(()),
            },
            Self::Subgroups => match caps.subgroups {
                Feature::Off => Err(Refusal::SubgroupsOff),
                Feature::Missing => Err(Refusal::NoSubgroups),
                Feature::On(SubgroupSizes { min, max })
                    if !(min..=max).contains(&SUBGROUP_SIZE) =>
                {
                    Err(Refusal::SubgroupSizes { min, max })
                }
                Feature::On(_) if caps.invocations < SUBGROUP_INVOCATIONS => {
                    Err(Refusal::SubgroupInvocations { invocations: caps.invocations })
                }
                Feature::On(_) => Ok(()),
            },
            Self::Software if caps.software => Ok(()),
            Self::Software => Err(Refusal::NotSoftware),
        }
    }
}

impl Kernel {
    /// Whether a device with these caps gets it, or why not.
    pub fn fits(&self, caps: &Caps) -> Result<(), Refusal> {
        self.needs.iter().try_for_each(|need| need.met(caps))?;
        let (needed, limit) = (self.workgroup_bytes, caps.workgroup_bytes);
        if needed > limit {
            return Err(Refusal::WorkgroupBytes { needed, limit });
        }
        if caps.invocations < FEWEST_THREADS {
            return Err(Refusal::Invocations { limit: caps.invocations });
        }
        let (needed, limit) = (self.buffers.len(), caps.storage_buffers);
        if needed > limit as usize {
            return Err(Refusal::StorageBuffers { needed, limit });
        }
        Ok(())
    }

    /// Threads of its workgroups on such a device: those it wants, or the largest power of two that is allowed.
    pub fn threads(&self, caps: &Caps) -> u32 {
        self.invocations.min(1 << caps.invocations.max(1).ilog2())
    }
}

/// The kernel that an operation gets, after those that it does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub op: KernelOp,
    pub chosen: Option<&'static Kernel>,
    /// Better ones, the best first.
    pub refused: Vec<(&'static Kernel, Refusal)>,
}

/// The first kernel of an operation that fits.
pub fn choose(op: KernelOp, caps: &Caps) -> Choice {
    let mut choice = Choice { op, chosen: None, refused: Vec::new() };
    for kernel in KERNELS.iter().filter(|kernel| kernel.op == op) {
        match kernel.fits(caps) {
            Ok(()) => {
                choice.chosen = Some(kernel);
                break;
            }
            Err(refusal) => choice.refused.push((kernel, refusal)),
        }
    }
    choice
}

/// The choices for every operation, in the order of the table.
pub fn choices(caps: &Caps) -> Vec<Choice> {
    let mut ops: Vec<KernelOp> = Vec::new();
    for kernel in KERNELS {
        if !ops.contains(&kernel.op) {
            ops.push(kernel.op);
        }
    }
    ops.into_iter().map(|op| choose(op, caps)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(min: u32, max: u32) -> Feature<SubgroupSizes> {
        Feature::On(SubgroupSizes { min, max })
    }

    /// Row 2 of the behaviours: every way not to get subgroups ends at the floor, with its reason.
    #[test]
    fn subgroups_are_for_devices_that_suit_them() {
        let suitable = Caps { invocations: 1024, subgroups: sizes(32, 32), ..Caps::floor() };
        let refusal = |caps: Caps| {
            let choice = choose(KernelOp::Matvec, &caps);
            let chosen = choice.chosen.expect("the floor always fits");
            assert_eq!(chosen.needs.is_empty(), !choice.refused.is_empty());
            choice.refused.first().map(|(_, refusal)| *refusal)
        };
        assert_eq!(refusal(suitable), None);
        assert_eq!(refusal(Caps { subgroups: sizes(4, 128), ..suitable }), None);
        assert_eq!(refusal(Caps::floor()), Some(Refusal::SubgroupsOff));
        let missing = Caps { subgroups: Feature::Missing, ..suitable };
        assert_eq!(refusal(missing), Some(Refusal::NoSubgroups));
        for (min, max) in [(64, 64), (64, 128), (8, 8), (4, 16)] {
            let caps = Caps { subgroups: sizes(min, max), ..suitable };
            assert_eq!(refusal(caps), Some(Refusal::SubgroupSizes { min, max }));
        }
        let invocations = 256;
        let narrow = Caps { invocations, ..suitable };
        assert_eq!(refusal(narrow), Some(Refusal::SubgroupInvocations { invocations }));
    }

    #[test]
    fn a_kernel_that_does_not_fit_says_why() {
        let refusals = |caps: Caps| {
            let refused = choices(&caps).into_iter();
            let refused =
                refused.filter(|choice| choice.chosen.is_none() && !choice.op.is_optional());
            refused.map(|choice| choice.refused.last().expect("tried").1).collect::<Vec<_>>()
        };
        assert_eq!(refusals(Caps::floor()), []);
        let limit = 63;
        let few = refusals(Caps { invocations: limit, ..Caps::floor() });
        assert!(!few.is_empty());
        assert!(few.iter().all(|refusal| *refusal == Refusal::Invocations { limit }));
        let small = refusals(Caps { workgroup_bytes: 8 << 10, ..Caps::floor() });
        assert!(small.iter().all(|why| matches!(why, Refusal::WorkgroupBytes { limit: 8192, .. })));
        assert!(!small.is_empty());
        let caps = Caps { f16: Feature::Missing, ..Caps::floor() };
        let choice = choose(KernelOp::Matmul, &caps);
        assert_eq!(choice.refused[0].1, Refusal::NoF16);
    }

    /// Row 23: a power of two, and no more than the device allows.
    #[test]
    fn workgroups_shrink_to_what_the_device_allows() {
        let threads = |invocations| {
            let caps = Caps { invocations, ..Caps::floor() };
            choose(KernelOp::RmsNorm, &caps).chosen.map(|kernel| kernel.threads(&caps))
        };
        let expected =
            [(1024, Some(256)), (256, Some(256)), (255, Some(128)), (64, Some(64)), (63, None)];
        for (invocations, expected) in expected {
            assert_eq!(threads(invocations), expected, "{invocations}");
        }
    }
}
