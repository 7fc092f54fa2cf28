//! What placement and kernels may rely on.

use std::str::FromStr;

/// Limits and optional features of a device, as far as anything here depends on them.
///
/// As a ceiling it says what may be used; of a device, what is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Caps {
    /// Bytes of one storage binding.
    pub binding_bytes: u64,
    /// Bytes of one buffer.
    pub buffer_bytes: u64,
    /// Bytes of `var<workgroup>` in one workgroup. wgpu does not check this one.
    pub workgroup_bytes: u32,
    /// Threads of one workgroup.
    pub invocations: u32,
    /// Storage buffers of one kernel.
    pub storage_buffers: u32,
    /// Workgroups of one dispatch in one dimension.
    pub groups_per_dimension: u32,
    /// What the offset of a binding is a multiple of.
    pub offset_alignment: u32,
    /// Arithmetic in f16, which rounds more coarsely than f32.
    pub f16: Feature<()>,
    /// Operations across the threads of a subgroup.
    pub subgroups: Feature<SubgroupSizes>,
    /// Cooperative matrices of 16 x 16 f16 with sums in f32, for subgroups of 32 threads. An experiment of wgpu's.
    pub cooperative: Feature<()>,
    /// Threads run on the cores of a processor; as a ceiling, whether kernels may know. Browsers do not tell.
    pub software: bool,
}

/// Something that not every device has and that is used only by those who ask for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Feature<T> {
    /// Not asked for.
    Off,
    /// Asked for, but the device has none.
    Missing,
    /// Asked for and there.
    On(T),
}

/// How many threads a subgroup may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct SubgroupSizes {
    pub min: u32,
    pub max: u32,
}

impl SubgroupSizes {
    /// No constraint.
    pub const ANY: Self = Self { min: 1, max: u32::MAX };
}

impl<T> Feature<T> {
    /// What becomes of it if it is asked for, or not.
    fn when(self, wanted: bool) -> Self {
        if wanted { self } else { Self::Off }
    }

    /// Whether it can be used.
    pub fn is_on(&self) -> bool {
        matches!(self, Self::On(_))
    }
}

impl Caps {
    /// What every WebGPU device has (<https://www.w3.org/TR/webgpu/#limits>).
    pub const fn floor() -> Self {
        Self {
            binding_bytes: 128 << 20,
            buffer_bytes: 256 << 20,
            workgroup_bytes: 16 << 10,
            invocations: 256,
            storage_buffers: 8,
            groups_per_dimension: 65_535,
            offset_alignment: 256,
            f16: Feature::Off,
            subgroups: Feature::Off,
            cooperative: Feature::Off,
            software: false,
        }
    }

    /// As a ceiling: all limits of the device, and nothing optional.
    pub const fn auto() -> Self {
        Self {
            binding_bytes: u64::MAX,
            buffer_bytes: u64::MAX,
            workgroup_bytes: u32::MAX,
            invocations: u32::MAX,
            storage_buffers: u32::MAX,
            groups_per_dimension: u32::MAX,
            offset_alignment: 1,
            f16: Feature::Off,
            subgroups: Feature::Off,
            cooperative: Feature::Off,
            software: true,
        }
    }

    /// Everything an adapter offers.
    pub(super) fn of(adapter: &wgpu::Adapter) -> Self {
        let (limits, features, info) = (adapter.limits(), adapter.features(), adapter.get_info());
        let SubgroupSizes { min, max } =
            SubgroupSizes { min: info.subgroup_min_size, max: info.subgroup_max_size };
        let has = |feature| features.contains(feature);
        Self {
            binding_bytes: limits.max_storage_buffer_binding_size,
            buffer_bytes: limits.max_buffer_size,
            workgroup_bytes: limits.max_compute_workgroup_storage_size,
            invocations: limits
                .max_compute_invocations_per_workgroup
                .min(limits.max_compute_workgroup_size_x),
            storage_buffers: limits.max_storage_buffers_per_shader_stage,
            groups_per_dimension: limits.max_compute_workgroups_per_dimension,
            offset_alignment: limits
                .min_storage_buffer_offset_alignment
                .max(limits.min_uniform_buffer_offset_alignment),
            f16: if has(wgpu::Features::SHADER_F16) { Feature::On(()) } else { Feature::Missing },
            subgroups: if has(wgpu::Features::SUBGROUP) {
                Feature::On(SubgroupSizes { min, max })
            } else {
                Feature::Missing
            },
            cooperative: if has(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX)
                && (min, max) == (32, 32)
                && adapter.cooperative_matrix_properties().iter().any(suits)
            {
                Feature::On(())
            } else {
                Feature::Missing
            },
            software: info.device_type == wgpu::DeviceType::Cpu,
        }
    }

    /// No more than `ceiling` in any respect.
    #[must_use]
    pub fn capped(self, ceiling: Self) -> Self {
        Self {
            binding_bytes: self.binding_bytes.min(ceiling.binding_bytes),
            buffer_bytes: self.buffer_bytes.min(ceiling.buffer_bytes),
            workgroup_bytes: self.workgroup_bytes.min(ceiling.workgroup_bytes),
            invocations: self.invocations.min(ceiling.invocations),
            storage_buffers: self.storage_buffers.min(ceiling.storage_buffers),
            groups_per_dimension: self.groups_per_dimension.min(ceiling.groups_per_dimension),
            offset_alignment: self.offset_alignment.max(ceiling.offset_alignment),
            f16: self.f16.when(ceiling.f16 != Feature::Off),
            subgroups: self.subgroups.when(ceiling.subgroups != Feature::Off),
            cooperative: self.cooperative.when(ceiling.cooperative != Feature::Off),
            software: self.software && ceiling.software,
        }
    }

    /// The limits to ask a device for, so that wgpu holds us to these caps; the rest stays as `adapter` has it.
    pub(super) fn limits(self, adapter: &wgpu::Limits) -> wgpu::Limits {
        wgpu::Limits {
            max_storage_buffer_binding_size: self.binding_bytes,
            max_buffer_size: self.buffer_bytes,
            max_compute_workgroup_storage_size: self.workgroup_bytes,
            max_compute_invocations_per_workgroup: self.invocations,
            max_compute_workgroup_size_x: self.invocations,
            max_compute_workgroup_size_y: self.invocations,
            max_storage_buffers_per_shader_stage: self.storage_buffers,
            max_compute_workgroups_per_dimension: self.groups_per_dimension,
            min_storage_buffer_offset_alignment: self.offset_alignment,
            min_uniform_buffer_offset_alignment: self.offset_alignment,
            ..adapter.clone()
        }
    }

    /// The features to ask a device for: those that are on, which the adapter has.
    pub(super) fn features(self) -> wgpu::Features {
        let mut features = wgpu::Features::empty();
        features.set(wgpu::Features::SHADER_F16, self.f16.is_on());
        features.set(wgpu::Features::SUBGROUP, self.subgroups.is_on());
        let cooperative = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
        features.set(cooperative, self.cooperative.is_on());
        features
    }
}

/// Whether kernels are made for these matrices.
fn suits(matrix: &wgpu::CooperativeMatrixProperties) -> bool {
    let sizes = (matrix.m_size, matrix.n_size, matrix.k_size);
    let types = (matrix.ab_type, matrix.cr_type);
    sizes == (16, 16, 16)
        && types == (wgpu::CooperativeScalarType::F16, wgpu::CooperativeScalarType::F32)
}

impl FromStr for Caps {
    type Err = String;

    /// A ceiling, as `--caps` has it: `auto` or `none`, then `+f16`, `-f16`, `+subgroups`, `-subgroups`, `+coop`,
    /// `-coop`, `+software`, `-software`, separated by commas; of two that contradict each other the later counts.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut caps = Self::auto();
        for (i, word) in text.split(',').enumerate() {
            match word {
                "auto" if i == 0 => {}
                // What threads run on is no feature to go without.
                "none" if i == 0 => caps = Self { software: true, ..Self::floor() },
                "+f16" => caps.f16 = Feature::On(()),
                "-f16" => caps.f16 = Feature::Off,
                "+subgroups" => caps.subgroups = Feature::On(SubgroupSizes::ANY),
                "-subgroups" => caps.subgroups = Feature::Off,
                "+coop" => caps.cooperative = Feature::On(()),
                "-coop" => caps.cooperative = Feature::Off,
                "+software" => caps.software = true,
                "-software" => caps.software = false,
                "auto" | "none" => return Err(format!("`{word}` can only come first")),
                _ => {
                    return Err(format!(
                        "`{word}` is none of auto, none, +f16, -f16, +subgroups, -subgroups, +coop, -coop, +software \
                         and -software"
                    ));
                }
            }
        }
        Ok(caps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caps_are_written_as_a_list() {
        let parsed = |text: &str| text.parse::<Caps>();
        assert_eq!(parsed("auto"), Ok(Caps::auto()));
        let none = Caps { software: true, ..Caps::floor() };
        assert_eq!(parsed("none"), Ok(none));
        assert_eq!(parsed("none,-software"), Ok(Caps::floor()));
        assert_eq!(parsed("-software,+software"), Ok(Caps::auto()));
        assert_eq!(parsed("none,+f16"), Ok(Caps { f16: Feature::On(()), ..none }));
        assert_eq!(parsed("+f16,-f16"), Ok(Caps::auto()));
        let subgroups = Feature::On(SubgroupSizes::ANY);
        assert_eq!(parsed("+subgroups"), Ok(Caps { subgroups, ..Caps::auto() }));
        assert!(parsed("+f16,none").is_err_and(|why| why.contains("first")));
        assert!(parsed("f16").is_err_and(|why| why.contains("`f16`") && why.contains("+f16")));
        assert!(parsed("").is_err());
    }

    /// Row 3 of the behaviours: nothing is asked of a device that it does not have, or that nobody wants.
    #[test]
    fn only_features_that_are_wanted_and_there_are_asked_for() {
        let bare = Caps { f16: Feature::Missing, subgroups: Feature::Missing, ..Caps::floor() };
        let sizes = SubgroupSizes { min: 8, max: 8 };
        let rich = Caps { f16: Feature::On(()), subgroups: Feature::On(sizes), ..Caps::floor() };
        let all: Caps = "+f16,+subgroups".parse().expect("a list");
        assert_eq!(rich.capped(Caps::auto()).features(), wgpu::Features::empty());
        assert_eq!(bare.capped(all).features(), wgpu::Features::empty());
        assert_eq!(rich.capped(all), rich);
        assert_eq!(
            rich.capped(all).features(),
            wgpu::Features::SHADER_F16 | wgpu::Features::SUBGROUP
        );
    }
}
