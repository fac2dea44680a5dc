"""Transfer to object detection: Faster R-CNN with a C4 backbone on PASCAL VOC."""
