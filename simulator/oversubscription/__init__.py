"""The oversubscription simulator: VMs on machines whose cores are sold more than once, and how hot they run."""
