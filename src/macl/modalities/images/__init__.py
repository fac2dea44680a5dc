"""Images: folders, arrays and CIFAR; SimCLR's views; ResNets; probes and detection."""
