//! What placement and kernels may rely on.

/// Limits of a device, as far as anything here depends on them.
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
        }
    }

    /// The same, read from a device.
    pub fn of(limits: &wgpu::Limits) -> Self {
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
}
